"""Runs inside the rig: the bytes of parameters that are away between the ops that use them.

stdin: one JSON object {"frozen": whether every other layer is, "host": budget of the host, or null}. Prints one JSON
object after "@@". Kernels do nothing there, so parameters hold what this script copies to them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners.budget import run_budget
from tests.fakecuda.within import trust

WIDTH, LAYERS, ROWS = 1024, 8, 64


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    run_budget._ways = lambda request: [request]  # pyright: ignore[reportPrivateUsage]
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    for layer in layers[::2] if spec["frozen"] else ():
        layer.requires_grad_(False)
    model = nn.Sequential(*layers)
    expected = [p.detach().clone() for p in model.parameters()]
    model.cuda()
    batch = torch.zeros(ROWS, WIDTH, device="cuda", requires_grad=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def equal() -> bool:
        pairs = zip(model.parameters(), expected, strict=True)
        return all(torch.equal(p.detach().cpu(), was) for p, was in pairs)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    found: dict[str, Any] = {}
    budget = "device=40GiB" if spec["host"] is None else f"device=40GiB,host={spec['host']}"
    allow: Any = ("swap", "state", "gradient", "parameter")
    with er.within(budget, planner="on_demand", allow=allow) as room:
        steps(6)
        found["away"] = sum(RAW_STORAGE(p).nbytes() == 0 for p in model.parameters())
        found["between"] = equal()
        steps(1)
        for number in (0, 3):  # one frozen, one trained
            expected[number] = torch.full((WIDTH, WIDTH), 0.25 + number)
            layers[number].weight.data.copy_(expected[number])
        steps(2)
        found["written"] = equal()
        steps(1)
        found["swapped_out"] = room.steps[-1].swapped_out_bytes
    found["closed"] = equal()
    found["mismatches"] = sum(step.mismatches for step in room.steps)
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
