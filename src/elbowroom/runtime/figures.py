"""Figures of the steps of a run, and what people are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elbowroom.runtime.entries import Counters
from elbowroom.runtime.known import Known
from elbowroom.units import format_bytes, format_ns

Mode = Literal["observe", "plan", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What one step did.

    Attributes:
        mode: "observe" (everything swapped), "plan", or "keep" (it fits: nothing is moved).
        step_ns: from its first module call or large save to the end of its last optimizer step.
        stall_ns: time it waited for transfers.
        swapped_out_bytes, swapped_back_bytes: what left the device and came back.
        mismatches: saved storages that were not what the plan expected.
        recomputed_bytes, recompute_ns: what recipes rebuilt, and how long that took.
        checked: whether all that autograd saved was compared with what the plan expects; see unhooked.py.
    """

    mode: Mode
    step_ns: int
    stall_ns: int
    swapped_out_bytes: int
    swapped_back_bytes: int
    mismatches: int
    recomputed_bytes: int = 0
    recompute_ns: int = 0
    checked: bool = True


def of_step(mode: Mode, step_ns: int, counters: Counters, mismatches: int, *, checked: bool) -> StepFigures:
    """The figures of a step that has ended."""
    return StepFigures(
        mode=mode,
        step_ns=step_ns,
        stall_ns=counters.stall_ns,
        swapped_out_bytes=counters.swapped_out_bytes,
        swapped_back_bytes=counters.swapped_back_bytes,
        mismatches=mismatches,
        recomputed_bytes=counters.recomputed_bytes,
        recompute_ns=counters.recompute_ns,
        checked=checked,
    )


def summary(budget_bytes: int, known: Known, steps: Sequence[StepFigures], count: int) -> str:
    """One paragraph.

    Args:
        budget_bytes: what the run was allowed.
        known: the kind of step that ran last.
        steps: figures, the last step's last.
        count: how many steps ended.
    """
    last, plan = steps[-1], known.plan
    peak = f"budget {format_bytes(budget_bytes)}, planned peak {format_bytes(known.schedule.peak_allocated_bytes)}"
    if not (plan.swaps or plan.recomputes):
        return f"elbowroom: {peak}: it fits, nothing is moved ({count} steps)"
    saves = {save.storage for save in known.trace.saves}
    states = sum(swap.storage not in saves for swap in plan.swaps)
    what = f"{len(plan.swaps) - states} of {len(known.trace.saves)} saved storages swapped"
    what += f" and {states} optimizer states" if states else ""
    dropped = sum(len(each.storages) for each in plan.recomputes)
    took = f"{format_bytes(last.recomputed_bytes)} in {format_ns(last.recompute_ns)}"
    what += f", {dropped} recomputed ({took})" if dropped else ""
    return (
        f"elbowroom: {peak}; {what}, "
        f"{format_bytes(last.swapped_out_bytes)} out and {format_bytes(last.swapped_back_bytes)} back in the last "
        f"step, stall {format_ns(last.stall_ns)} of {format_ns(last.step_ns)} ({count} steps, "
        f"{sum(step.mismatches for step in steps)} mismatches)"
    )
