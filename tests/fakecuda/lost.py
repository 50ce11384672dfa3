"""Runs inside the rig: a training within a budget whose device is lost in the middle of it.

stdin: one JSON object {"step": after so many steps, "calls": and so many calls of CUDA more, "error": its number,
"budget": of the run}. Prints one JSON object after "@@": what was raised, and what is left; null where this rig cannot
lose its device.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import warnings
from typing import Any

import elbowroom as er
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES
from tests.fakecuda.faults import Training, open_files

STEPS = 8


def lose_after(calls: int, error: int) -> None:
    """Every call of CUDA fails after so many more. Raises AttributeError on a rig of before there was this."""
    ctypes.CDLL("libcudart.so.13").fakecuda_lose_after(ctypes.c_int64(calls), error)


def tried(spec: dict[str, Any]) -> dict[str, Any] | None:
    try:
        lose_after(-1, spec["error"])  # not yet
    except AttributeError:
        return None
    training = Training()
    training.step()
    before, files, found = threading.active_count(), open_files(), dict[str, Any]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with er.within(spec["budget"], allow=MOVES) as room:
                for step in range(STEPS):
                    if step == spec["step"]:
                        lose_after(spec["calls"], spec["error"])
                    training.step()
                    found["mode"] = run_of(room)._mode
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            cause = error.__cause__
            found["error"] = f"{type(error).__name__}: {error}"
            found["cause"] = f"{type(cause).__name__}: {cause}" if cause else ""
    gc.collect()
    found["left"] = {"threads": threading.active_count() - before, "files": open_files() - files}
    return found | {"told": [str(each.message) for each in told]}


def main() -> None:
    print("@@" + json.dumps(tried(json.load(sys.stdin))), flush=True)


if __name__ == "__main__":
    main()
