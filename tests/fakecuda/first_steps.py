"""Runs inside the rig: what a device holds in the first steps of trainings whose parameters move.

stdin: one JSON object {"models": [names], "inside": whether the model is made within the budget, "share": of the least
budget that a refusal names, which they train within; 1 also is what the device has}. Prints one JSON object after
"@@": per model the least budget, and the peaks of each step.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import warnings
from typing import Any

import torch

import elbowroom as er
from tests.fakecuda.within import trust
from tests.fakecuda.within_models import MODELS

ALLOW: Any = ("swap", "state", "gradient", "parameter")
PLENTY_BYTES = 40 << 30
STEPS = 7


def set_capacity(size_bytes: int) -> None:
    ctypes.CDLL("libcudart.so.13").fakecuda_set_capacity(ctypes.c_uint64(size_bytes))


def held() -> dict[str, int]:
    """Peaks since the last call of this."""
    found = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    torch.cuda.reset_peak_memory_stats()
    return found


def within(model: str, budget_bytes: int, *, inside: bool) -> dict[str, Any]:
    """Train within a budget: peaks and modes of all steps, or the least budget that a refusal names.

    Args:
        model: of MODELS.
        budget_bytes: of the device.
        inside: whether the model is made within the budget; else it is there before.
    """
    step = None if inside else MODELS[model]()
    held()
    found: dict[str, Any] = {"before": held(), "steps": []}
    try:
        with er.within(f"device={budget_bytes}", allow=ALLOW) as room:
            step = step or MODELS[model]()
            held()
            for _ in range(STEPS):
                step()
                found["steps"].append(held())
    except er.Infeasible as problem:
        return {"least": problem.least_feasible_bytes}
    return {**found, "modes": [each.mode for each in room.steps], "mismatches": [s.mismatches for s in room.steps]}


def tried(model: str, share: float, *, inside: bool) -> dict[str, Any]:
    """Train within a share of the least budget that is named; below a hard limit of that if the model is made there."""
    least_bytes = within(model, 1 << 20, inside=inside)["least"]
    gc.collect()
    torch.cuda.empty_cache()
    left_bytes = torch.cuda.memory_reserved()
    budget_bytes = int(share * least_bytes)
    if inside and share == 1:
        set_capacity(budget_bytes)
    try:
        found = within(model, budget_bytes, inside=inside)
        return {"least": least_bytes, "budget": budget_bytes, "left": left_bytes, **found}
    finally:
        set_capacity(PLENTY_BYTES)


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    warnings.simplefilter("ignore")
    share, inside = spec.get("share", 1), spec["inside"]
    print("@@" + json.dumps({model: tried(model, share, inside=inside) for model in spec["models"]}))


if __name__ == "__main__":
    main()
