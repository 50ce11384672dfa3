"""Runs inside the rig: the least device on which a way of benchmarks/weights/ways.py trains, and the bytes it moves.

stdin: one JSON object {"model": name, "way": name, "steps": n, "within": capacities to train at as well}. Prints one
JSON object after "@@". Each trial is a process of its own, whose device has that capacity from the beginning.
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

import elbowroom as er
from benchmarks.limits.trials import in_child
from benchmarks.weights.ways import OURS, largest_modules, model_of, trained, versions

PLENTY_BYTES = 40 << 30
MIB = 2**20
SHARE = 50
"""The interval that is searched ends at one such part of its lower end."""
SPARE_BYTES = 2 << 20
"""What elbowroom's budget leaves of the device: memory that Python holds past torch's allocator."""
Peaks = dict[str, int]


@cache
def cudart() -> Any:
    """The driver of the rig."""
    library = ctypes.CDLL("libcudart.so.13")
    library.fakecuda_peak_used.restype = ctypes.c_uint64
    return library


def copied() -> tuple[int, int]:
    """Bytes copied from the device and to it until now. Raises RuntimeError: the rig does not count them."""
    out, back = ctypes.c_uint64(), ctypes.c_uint64()
    try:
        cudart().fakecuda_copied(ctypes.byref(out), ctypes.byref(back))
    except AttributeError:
        raise RuntimeError("the rig is older than this benchmark, and counts no copies: `make rig` anew") from None
    return out.value, back.value


def tried(spec: dict[str, Any], capacity_bytes: int) -> Peaks | None:
    """Train under a capacity: what the device held at most, and what the last step moved. None: memory ran out."""
    cudart().fakecuda_set_capacity(ctypes.c_uint64(capacity_bytes))
    warnings.simplefilter("ignore")
    out_bytes = back_bytes = 0
    try:
        with trained(spec["way"], spec["model"], capacity_bytes - SPARE_BYTES) as step:
            for _ in range(spec["steps"]):
                before = copied()
                step()
                torch.cuda.synchronize()
                out_bytes, back_bytes = (b - a for a, b in zip(before, copied(), strict=True))
            peak_bytes = cudart().fakecuda_peak_used()
    except er.Infeasible:
        return None
    except RuntimeError as problem:
        if "out of memory" not in str(problem):  # the allocator's error, or one of the driver
            raise
        return None
    return {"peak_bytes": peak_bytes, "out_bytes": out_bytes, "back_bytes": back_bytes}


def sizes(spec: dict[str, Any]) -> Peaks:
    """Bytes of a model's weights, and of the two largest modules with gradients and states."""
    model = model_of(spec["model"])[0]
    return {"weights_bytes": sum(p.nbytes for p in model.parameters()), "modules_bytes": largest_modules(model)}


def alone(work: Callable[[], Peaks | None]) -> Peaks | None:
    """Do it in a process of its own. Raises RuntimeError: it failed."""
    return in_child(lambda: {"peaks": work()})["peaks"]


def least(spec: dict[str, Any]) -> dict[str, Any]:
    """The least capacity at which a trial ends well, the peak without one, and trials at the given capacities."""
    free = None if spec["way"] == OURS else alone(partial(tried, spec, PLENTY_BYTES))
    within = {str(each): alone(partial(tried, spec, each)) for each in spec["within"]}
    found: dict[str, Any] = {**(alone(partial(sizes, spec)) or {}), "free": free, "within": within}
    high = max(spec["within"]) if free is None else free["peak_bytes"] + 2 * MIB
    low, at_high, trials = 0, None, 0
    while high - low > max(low // SHARE, 2 * MIB) or at_high is None:
        middle = high if at_high is None else (low + high) // 2
        trials += 1
        if peaks := alone(partial(tried, spec, middle)):
            high, at_high = middle, peaks
        elif at_high is None:
            low, high = high, high + high // 4
        else:
            low = middle
    return {**found, "least_bytes": high, "at_least": at_high, "trials": trials, "versions": versions()}


def main() -> None:
    spec = json.load(sys.stdin)
    try:
        found = least(spec)
    except RuntimeError as problem:
        found = {"not_run": str(problem).splitlines()[0][:300]}
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
