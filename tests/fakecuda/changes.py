"""Runs inside the rig: a training on a small card whose plans change, and what the allocator was short of.

stdin: one JSON object {"model": name, "steps": n}. Prints one JSON object after "@@". Needs torch and numpy, and the
project on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import elbowroom as er
from elbowroom.run.room import run_of
from tests.fakecuda.within import trust
from tests.fakecuda.within_models import MODELS

MEANS = ("swap", "state", "gradient")


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    torch.manual_seed(0)
    step = MODELS[spec["model"]]()
    plans: list[Any] = []
    with er.within("auto", allow=MEANS) as room:
        for _ in range(spec["steps"]):
            step()
            known = run_of(room).known()
            plans.append(None if known is None else known.plan)
    counted = torch.cuda.memory_stats()
    found = {
        "different": [len(plan.swaps) for plan in dict.fromkeys(plans) if plan is not None],
        "modes": [each.mode for each in room.steps],
        "mismatches": sum(each.mismatches for each in room.steps),
        "ooms": counted["num_ooms"],
    }
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
