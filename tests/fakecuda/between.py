"""Runs inside the rig: a training within a budget that is evaluated between its steps, on more than it trains on.

stdin: one JSON object {"budget": of the run, "rows": of the evaluation, "steps": n}. Prints one JSON object after "@@".
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch import nn

import elbowroom as er
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES

WIDTH, ROWS = 512, 8192


def main() -> None:
    spec = json.load(sys.stdin)
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]).cuda()
    batch, more = torch.zeros(ROWS, WIDTH, device="cuda"), torch.zeros(spec["rows"], WIDTH, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    most = 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with er.within(spec["budget"], allow=MOVES) as room:
            for _ in range(spec["steps"]):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    model(more)
                most = max(most, torch.cuda.max_memory_reserved())
    found = {
        "told": [str(each.message) for each in told if str(each.message).startswith("elbowroom")],
        "beyond_bytes": room.beyond_bytes,
        "held_bytes": most,
        "budget_bytes": run_of(room).budget_bytes,
        "summary": room.summary().splitlines(),
        "mismatches": sum(step.mismatches for step in room.steps),
    }
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
