"""Runs inside the rig: trainings that may have managed memory beyond the budget of the device.

stdin: one JSON object {"cases": [names]}. Prints one JSON object after "@@": what each case found.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

import elbowroom as er
from elbowroom.engine.tiers import managed
from elbowroom.run.room import run_of
from elbowroom.torch_compat.cuda_allocator import keep_memory_history, memory_snapshot
from tests.fakecuda.within_models import MODELS

MIB = 1 << 20
STEPS = 6
Found = dict[str, Any]


def used_managed() -> int:
    """Bytes in use of all managed memory."""
    return sum(s["allocated_size"] for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] in managed.pools)


def most_used(step: Callable[[], object]) -> int:
    """Bytes in use of all managed memory while a step runs, at most, as the allocator's history says."""
    found = [used_managed()]
    keep_memory_history(on=True)
    step()
    seen = memory_snapshot()
    keep_memory_history(on=False)
    pools = [segment for segment in seen["segments"] if segment["segment_pool_id"] in managed.pools]
    ranges = [range(segment["address"], segment["address"] + segment["total_size"]) for segment in pools]
    for event in seen["device_traces"][torch.cuda.current_device()]:
        sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        if sign and any(event["addr"] in each for each in ranges):
            found.append(found[-1] + sign * event["size"])
    return max(found)


def plain_reserved() -> int:
    step = MODELS["residual net"]()
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_reserved()


def run(share: float, reserved: int, managed_bytes: int | str) -> Found:
    """Train at a share of the plain peak; what the device and the managed memory held at most."""
    found: Found = {"on_device": 0, "used": 0, "error": "", "modes": [], "budget_bytes": int(share * reserved)}
    torch.cuda.empty_cache()
    try:
        with (
            warnings.catch_warnings(record=True) as told,
            er.within(found["budget_bytes"], managed=managed_bytes, allow=["swap"]) as room,
        ):
            found["told"] = [str(each.message) for each in told if "managed" in str(each.message)]
            found["has"] = managed.held_bytes()
            torch.cuda.reset_peak_memory_stats()
            step = MODELS["residual net"]()
            for _ in range(STEPS - 1):
                step()
                found["modes"].append(run_of(room)._mode)
            found["used"] = most_used(step)
            found["modes"].append(run_of(room)._mode)
            found["on_device"] = torch.cuda.max_memory_reserved() - managed.held_bytes()
            del step
    except (er.ElbowroomError, torch.OutOfMemoryError) as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
        found["least_bytes"] = error.least_feasible_bytes if isinstance(error, er.Infeasible) else 0
    return found | after()


def after() -> Found:
    """What is left once all is freed."""
    torch.cuda.empty_cache()
    return {"share": torch.cuda.get_per_process_memory_fraction(), "left": managed.held_bytes()}


def lives_on() -> Found:
    """A tensor in managed memory when the run ends, used and freed later."""
    torch.cuda.empty_cache()
    with er.within(torch.cuda.memory_reserved() + 4 * MIB, managed=64 * MIB):
        kept = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
    inside = used_managed()
    other = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")  # there is no limit any more, and no more managed
    same = used_managed()
    kept.fill_(1)
    del kept, other
    return {"used": inside, "used_after": same} | after()


def threads() -> Found:
    """Requests of another thread, of a backward pass, of small sizes and of another stream, beyond the budget."""
    torch.cuda.empty_cache()
    found: Found = {}

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            found["backward"] = asked(8 * MIB), threading.get_ident() != here
            return gradients[0]

    def asked(size_bytes: int) -> bool:
        """Whether a request got managed memory."""
        before = used_managed()
        held = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        got = used_managed() > before
        del held
        return got

    here = threading.get_ident()
    with er.within(torch.cuda.memory_reserved() + 4 * MIB, managed=64 * MIB):
        x = torch.ones(4, device="cuda", requires_grad=True)
        fills = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
        thread = threading.Thread(target=lambda: found.setdefault("thread", asked(8 * MIB)))
        thread.start()
        thread.join()
        Asks.apply(x).sum().backward()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        before = used_managed()
        small = [torch.empty(MIB // 2, dtype=torch.uint8, device="cuda") for _ in range(8)]
        found["small"] = used_managed() > before
        with torch.cuda.stream(torch.cuda.Stream()):
            try:
                found["other stream"] = asked(8 * MIB)
            except torch.OutOfMemoryError:
                found["other stream"] = "OutOfMemoryError"
        del fills, small, x
    return found | after()


def refused(**changes: str) -> Found:
    """With other variables of the environment."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        return run(1.0, 512 * MIB, 64 * MIB)
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    reserved = plain_reserved()
    cases: dict[str, Callable[[], Found]] = {
        "beyond": lambda: run(0.15, reserved, reserved),
        "too little": lambda: run(0.15, reserved, 32 * MIB),
        "within the budget": lambda: run(0.8, reserved, reserved),
        "none": lambda: run(0.15, reserved, 0),
        "more than the device has": lambda: run(0.15, reserved, "48GiB"),
        "lives on": lives_on,
        "threads": threads,
        "no such device": lambda: refused(FAKECUDA_NO_MANAGED="1"),
        "not divided": lambda: refused(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"),
        "small": lambda: run(1.0, reserved, 16 * MIB),
    }
    print("@@" + json.dumps({name: cases[name]() for name in json.load(sys.stdin)["cases"]}))


if __name__ == "__main__":
    main()
