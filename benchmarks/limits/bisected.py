"""Runs inside the rig: the least capacity that a training without elbowroom gets by with, to about 1 %.

stdin: one JSON object {"workload": name, "peer": name, "steps": n}. Prints one JSON object after "@@". The device's
capacity is changed once the model is made; each trial is a process of its own, and trains from its first step on.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.gpu_peers import Absent, around_steps, with_models
from benchmarks.limits.trials import in_child
from benchmarks.limits.workloads import made

OF_MODELS = "checkpoint on blocks"
"""The peer that changes the model; the others know nothing of it."""
PLENTY_BYTES = 80 << 30
MIB = 2**20
SHARE = 100
"""The interval that is searched ends at one such part of its lower end."""


def set_capacity(size_bytes: int) -> None:
    """Of the device of the rig."""
    ctypes.CDLL("libcudart.so.13").fakecuda_set_capacity(ctypes.c_uint64(size_bytes))


def tried(spec: dict[str, Any], capacity_bytes: int) -> dict[str, int] | None:
    """Peaks of a training under a capacity; None where memory ran out.

    Raises:
        Absent: the peer changes the model, and there are several.
    """
    set_capacity(PLENTY_BYTES)
    with torch.device("cuda"):
        step, models = with_models(partial(made, spec["workload"]))
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    if spec["peer"] == OF_MODELS and len(models) != 1:
        raise Absent(f"{len(models)} models are trained")
    if spec["peer"] != "plain":
        around = around_steps(spec["peer"], models[0])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    set_capacity(capacity_bytes)
    try:
        for _ in range(spec["steps"]):
            with around():
                step()
    except torch.OutOfMemoryError:
        return None
    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def alone(spec: dict[str, Any], capacity_bytes: int) -> dict[str, int] | None:
    """A trial in a process of its own.

    Raises:
        Absent: the peer cannot run.
        RuntimeError: something else than memory failed.
    """

    def work() -> dict[str, Any]:
        try:
            return {"peaks": tried(spec, capacity_bytes)}
        except Absent as problem:
            return {"absent": str(problem)}

    found = in_child(work)
    if "absent" in found:
        raise Absent(found["absent"])
    return found["peaks"]


def least(spec: dict[str, Any]) -> dict[str, Any]:
    """The peaks without a limit, and the least capacity at which a trial ends well."""
    if spec["peer"].startswith("OffloadActivations"):
        with suppress(ImportError):  # once for all trials, which say where it is missing
            import_module("trl.models.activation_offloading")
    peaks = alone(spec, PLENTY_BYTES)
    assert peaks is not None
    low, high, trials = peaks["allocated"] - 2 * MIB, peaks["reserved"], 1
    while high - low > max(low // SHARE, 2 * MIB):
        middle = (low + high) // 2
        trials += 1
        if alone(spec, middle):
            high = middle
        else:
            low = middle
    return {**peaks, "least": high, "trials": trials}


def main() -> None:
    spec = json.load(sys.stdin)
    try:
        found = least(spec)
    except Absent as problem:
        found = {"not_run": str(problem)}
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
