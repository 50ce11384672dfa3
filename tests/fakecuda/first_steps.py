"""Runs inside the rig: what a device holds in the first steps of trainings whose parameters move.

stdin: one JSON object {"models": [names], "inside": whether the model is made within the budget}. Prints one JSON
object after "@@": per model the least budget that a refusal names, and the peaks of each step within it.
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


def tried(model: str, *, inside: bool) -> dict[str, Any]:
    """Train within the least budget that is named, below a hard limit of it where the model is made within it."""
    least_bytes = within(model, 1 << 20, inside=inside)["least"]
    gc.collect()
    torch.cuda.empty_cache()
    left_bytes = torch.cuda.memory_reserved()
    if inside:
        set_capacity(least_bytes)
    try:
        return {"least": least_bytes, "left": left_bytes, **within(model, least_bytes, inside=inside)}
    finally:
        set_capacity(PLENTY_BYTES)


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    warnings.simplefilter("ignore")
    print("@@" + json.dumps({model: tried(model, inside=spec["inside"]) for model in spec["models"]}))


if __name__ == "__main__":
    main()
