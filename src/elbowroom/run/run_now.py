"""Run now: what a run holds and does at one moment, as plain values that another thread may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elbowroom.run_moment import RunMoment
from elbowroom.units import format_bytes

if TYPE_CHECKING:
    from elbowroom.plan import Plan
    from elbowroom.run.account import StepFigures
    from elbowroom.trace import Trace

WHY_NONE = {
    "": "none yet: no step has begun; a capture of the script may be planned for",
    "observe": "none yet: this step is observed, and what is large leaves",
    "frugal": "none for this step: what has no room leaves",
    "keep": "it fits, nothing is moved",
}
"""What a mode without moves says in place of a plan; "" is before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow(RunMoment):
    """A run at one moment, as a thread of its own process sees it.

    Attributes:
        in_step_ns: time since the present step began; None between steps, and while a training rests.
        stall_ns: time that the present step, or else the last one, has waited for transfers.
        recent: figures of the last thousands of steps, the last one last; without those of a rest that goes on.
    """

    in_step_ns: int | None
    stall_ns: int
    recent: Sequence[StepFigures] = field(default=(), repr=False)


def plan_in_force(mode: str, plan: Plan | None, trace: Trace | None) -> str:
    """Return what a plan moves, in words; why there is none where the mode is another than "plan"."""
    if mode != "plan" or plan is None or trace is None:
        return WHY_NONE.get(mode, "none")
    sizes: dict[str, list[int]] = {}
    for swap in plan.swaps:
        sizes.setdefault(f"swapped to {swap.tier}", []).append(trace.storages[swap.storage].size_bytes)
    for each in plan.recomputes:
        sizes.setdefault("recomputed", []).extend(trace.storages[storage].size_bytes for storage in each.storages)
    parts = [f"{format_bytes(sum(found))} {what} ({len(found)})" for what, found in sizes.items()]
    return ", ".join(parts) or WHY_NONE["keep"]
