"""Runs inside the rig: a training within a budget that needs a limit of the allocator, with evaluations between steps.

Prints one JSON object after "@@": for each step its peaks, the share of the device that torch might have in it, and the
warnings it raised; that share in an evaluation, and afterwards.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

import elbowroom as er
from tests.fakecuda import MOVES
from tests.fakecuda.within import Figures, peaks, trust
from tests.fakecuda.within_models import MODELS


def share() -> float:
    return torch.cuda.get_per_process_memory_fraction()


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    torch.cuda.set_per_process_memory_fraction(spec["share"])
    torch.manual_seed(0)
    train = MODELS[spec["model"]]()
    shares: list[float] = []
    torch.nn.modules.module.register_module_forward_hook(lambda *_: shares.append(share()))

    def step() -> Figures:
        peaks()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train()
        return {"peaks": peaks(), "share": shares[-1], "told": [str(each.message) for each in told]}

    budget = f"device={spec['budget_bytes']}"
    with er.within(budget, min_size="1MiB", allow=MOVES) as room:  # only so it needs a limit
        found: Figures = {"steps": [step() for _ in range(5)]}
        line: Any = room.simulated
        found["simulated"] = line.peak_allocated_bytes, line.peak_reserved_bytes
        with torch.no_grad():
            torch.nn.Identity()(torch.zeros(spec["evaluated_bytes"], dtype=torch.uint8, device="cuda"))
        found["evaluated"] = shares[-1]
        step()  # what the evaluation left in the cache goes where it begins
        found["again"] = step()
        kept = torch.zeros(spec["kept_bytes"], dtype=torch.uint8, device="cuda")
        found["beside"] = step()
        del kept
    found["after"] = share()
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
