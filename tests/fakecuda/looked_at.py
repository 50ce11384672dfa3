"""Runs inside the rig: a training within a budget that a thread looks at all the time, as `elbowroom run --live` does.

stdin: one JSON object {"budget": of the run, "looks": whether there is the thread}. Prints one JSON object after "@@".
"""

from __future__ import annotations

import json
import sys
import threading

import torch
from torch import nn

import elbowroom as er
from elbowroom.live.live_lines import live_lines
from elbowroom.live.sampling import Sampler
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES

WIDTH, ROWS = 512, 8192


def main() -> None:
    spec = json.load(sys.stdin)
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]).cuda()
    batch = torch.zeros(ROWS, WIDTH, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    over = threading.Event()
    reserved, seen, mid = [], [], []
    with er.within(spec["budget"], allow=MOVES) as room:
        run = run_of(room)
        sampler = Sampler(run.now, "train.py", lambda _: None)

        def look() -> None:
            while not over.is_set():
                sampler.take()

        thread = threading.Thread(target=look)
        if spec["looks"]:
            thread.start()
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            mid.append(sum(run.now().lower_bytes.values()))
            loss.backward()
            optimizer.step()
            reserved.append(torch.cuda.memory_reserved())
            seen.append(run.now().device_bytes)
        over.set()
        if spec["looks"]:
            thread.join()
    sampler.take()
    figures = sampler.figures.as_json()
    found = {
        "reserved": reserved,
        "seen": seen,
        "mid": mid,
        "moved": [(step.mode, step.swapped_out_bytes, step.mismatches) for step in room.steps],
        "totals": figures["totals"],
        "lines": live_lines(figures, 200),
        "tiers": sorted(figures["lower_bytes"]),
        "most": torch.cuda.max_memory_reserved(),
    }
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
