"""Figures of the steps of a run, and what people are told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from elbowroom.decided import Decided, decided
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
    """One line, and where storages are moved or dropped a table of them.

    Args:
        budget_bytes: what the run was allowed.
        known: the kind of step that ran last.
        steps: figures, the last step's last.
        count: how many steps ended.
    """
    last, plan = steps[-1], known.plan
    peak = f"budget {format_bytes(budget_bytes)}, planned peak {format_bytes(known.schedule.peak_allocated_bytes)}"
    if not (plan.swaps or plan.recomputes or plan.algorithms):
        return f"elbowroom: {peak}: it fits, nothing is moved ({count} steps)"
    found = decided(known.trace, plan)
    rows = [("", "storages", "size"), *((s.what, str(s.storages), format_bytes(s.size_bytes)) for s in found.shares)]
    return "\n".join(
        [
            f"elbowroom: {peak} ({count} steps, {sum(step.mismatches for step in steps)} mismatches)",
            *_table(rows),
            f"  the last step took {format_ns(last.step_ns)}: {', '.join(_in_step(found, last))}",
        ]
    )


def _in_step(found: Decided, last: StepFigures) -> Iterator[str]:
    """What a step did, in words."""
    yield f"{format_bytes(last.swapped_out_bytes)} out and {format_bytes(last.swapped_back_bytes)} back"
    yield f"stall {format_ns(last.stall_ns)}"
    if found.recipe_ops:
        took = format_ns(last.recompute_ns)
        yield f"{format_bytes(last.recomputed_bytes)} recomputed by {found.recipe_ops} ops in {took}"
    if found.algorithms:
        yield f"{found.algorithms} ops with another algorithm"


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Rows as lines: words to the left, numbers to the right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, storages, size in rows:
        yield f"  {what:<{wide[0]}}  {storages:>{wide[1]}}  {size:>{wide[2]}}"
