"""Runs inside the rig: a training whose limit gets lower in the middle, because somebody else takes memory.

stdin: one JSON object {"cases": [names], "small_disk": folder of a file system of 80 MiB}. Prints one JSON object after
"@@": per case what was raised and warned of, how many steps were trained, what is left, and whether training goes on
once there is room again.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import elbowroom as er
from elbowroom.engine.tiers import arenas
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES
from tests.fakecuda.faults import Training, held, left_after, mapped_bytes, patched, trained
from tests.fakecuda.within import trust

MIB = 2**20
BUDGET = "device=250MiB,host=1GiB"
STEPS = 8
Found = dict[str, Any]


def cudart() -> Any:
    return ctypes.CDLL("libcudart.so.13")


def lowered(at: int, share: float, **options: Any) -> Callable[[Training, str], Found]:
    """So much of what is free after some steps is somebody else's from then on: past torch's allocator."""

    def run(training: Training, _: str) -> Found:
        taken = ctypes.c_void_p()

        def takes() -> None:
            size_bytes = int(share * torch.cuda.mem_get_info()[0])
            assert cudart().cudaMalloc(ctypes.byref(taken), ctypes.c_size_t(size_bytes)) == 0

        try:
            return steps_of(training, {at: takes}, **options)
        finally:
            assert cudart().cudaFree(taken) == 0

    return run


def steps_of(
    training: Training,
    events: dict[int, Callable[[], None]],
    budget: str = BUDGET,
    spill_dir: str | None = None,
    **options: Any,
) -> Found:
    found: Found = {"steps": 0, "mode": ""}
    try:
        with er.within(budget, allow=MOVES, spill_dir=spill_dir, **options) as room:
            for step in range(STEPS):
                events.get(step, lambda: None)()
                training.step()
                found["steps"] += 1
                found["mode"] = run_of(room)._mode
                found["pinned"] = run_of(room).pinned_bytes
    except Exception as problem:  # noqa: BLE001 - it is what is looked at
        found["error"] = f"{type(problem).__name__}: {problem}"
        cause = problem.__cause__
        found["cause"] = f"{type(cause).__name__}: {cause}" if cause else ""
    return found


def refused_later(training: Training, _: str) -> Found:
    """The driver page-locks the first part of the host's memory and refuses the rest."""
    calls = [0]
    register = arenas._register

    def registers(*arguments: Any) -> int:
        calls[0] += 1
        return register(*arguments) if calls[0] <= 1 else 2

    with patched(arenas, "_register", registers):
        return {**steps_of(training, {}), "registered": calls[0]}


def disk_fills(training: Training, small_disk: str) -> Found:
    """The host has no room for all that must go, and the disk below it none for the rest."""
    found = steps_of(training, {}, "device=250MiB,host=100MiB", small_disk)
    return {**found, "on_disk": sorted(os.listdir(small_disk))}


CASES: dict[str, Callable[[Training, str], Found]] = {
    "half of what is free, while a step is observed": lowered(0, 0.5),
    "half of what is free, in planned steps": lowered(5, 0.5),
    "all that is free, after the first step": lowered(1, 1.0),
    "all that is free, in planned steps": lowered(5, 1.0),
    "all that is free, where nothing may leave": lowered(0, 1.0, min_size="1GiB", budget="device=1GiB,host=1GiB"),
    "page-locked memory refused in the middle": refused_later,
    "a disk that fills up": disk_fills,
}


def tried(case: str, small_disk: str) -> Found:
    training = Training()
    training.step()
    gc.collect()
    before = held()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = CASES[case](training, small_disk)
    training.step()
    return {
        **found,
        "warned": [str(each.message) for each in told if str(each.message).startswith("elbowroom")],
        "left": left_after(before),
        "left_on_host": mapped_bytes(),
        "then": trained(training)["mode"],
    }


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    print("@@" + json.dumps({name: tried(name, spec["small_disk"]) for name in spec["cases"]}))


if __name__ == "__main__":
    main()
