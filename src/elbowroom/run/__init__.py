"""Runtime: training inside a byte budget. torch is imported when a room opens, not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from elbowroom.plan import Plan
from elbowroom.trace import Trace

if TYPE_CHECKING:
    import torch

    from elbowroom.run.options import Knobs
    from elbowroom.run.room import Room

__all__ = ["within"]


@contextmanager
def within(
    budget: str | int | None = None,
    *,
    plan: Plan | None = None,
    trace: Trace | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    min_size: int | str | None = None,
    measure: bool = False,
    device: str | torch.device | None = None,
    **knobs: Unpack[Knobs],
) -> Iterator[Room]:
    """Run an unchanged training loop inside a budget of bytes: live storages in RAM, or what a CUDA device reserves.

    The first step is observed with every saved storage swapped. Later steps follow a plan, with bit-equal numbers.

    Args:
        budget: what the device tier may hold: "2GiB", "90%", "auto" (the default: what is free, less a margin),
            "device=2GiB,host=24GiB,pinned=4GiB,disk=50GiB" (CUDA), "device=2GiB,disk=50GiB" (RAM). On CUDA it counts
            what torch's allocator reserves, in RAM live storages; context, interpreter and libraries come on top.
        plan: a plan of the same training step to follow; None makes one.
        trace: the trace that `plan` was made from; needed if it was captured for a GPU that was not there.
        spill_dir: directory of the spill file; None is TMPDIR, or else the system's.
        min_size: smaller storages are kept; bytes or text. None: 1 MiB, or a 4096th part of the budget if less.
        measure: record one step under the final plan; its timeline is in `room.measured`.
        device: the device whose storages leave, such as "cpu" or "cuda:0"; None is torch's current CUDA device, else
            RAM.
        knobs: allow, planner, options, include, exclude, gds, managed: see `Knobs` in run/options.py.

    Raises:
        Infeasible: no plan meets the budget; raised at the start of the step after the observed ones.
        RecomputeFailed: steps differ in a way that no call shows, so recomputes do not give the same bits.
        InvalidPlan: `plan` is not for this step.
        UsageError: an argument is not allowed.
        TierFull, TierFailed: a lower tier has no room, or failed.
        DeviceLost: the CUDA device no longer answers.
    """
    from elbowroom.run.given_plan import given_plan
    from elbowroom.run.open_room import opened
    from elbowroom.run.options import asked

    given, plans = given_plan(plan, trace), asked(min_size, knobs, has_plan=plan is not None)
    with opened(budget, given, spill_dir, device, plans, measure=measure) as room:
        yield room
