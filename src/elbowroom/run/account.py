"""Figures of the steps of a run, and the summary printed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from elbowroom.engine.entries import Counters
from elbowroom.hardware.energy_meters import MeterSource
from elbowroom.run.kind_totals import Kinds
from elbowroom.run.step_kinds import StepKind
from elbowroom.simulate.energy import Energy
from elbowroom.step.plan_summary import Decided, decided
from elbowroom.timeline import Mode
from elbowroom.units import format_bytes, format_joules, format_ns

DIFFER = "inputs had new sizes in most of them. Inputs of few sizes, such as padded ones, are planned"
"""Why steps without a plan have none, where `Kinds.differ`."""
NO_PLAN = "no plan meets it so far, all that may leaves early"
"""Said in place of a planned peak, where the last step explored."""


class HeldMemory(Protocol):
    """The memory figures that a summary needs; `RunFigures` has them."""

    @property
    def kinds(self) -> Kinds:
        """What each kind of step holds."""
        ...

    @property
    def held_bytes(self) -> int:
        """The most bytes that the run held."""
        ...

    @property
    def over_bytes(self) -> int:
        """Bytes held beyond the budget."""
        ...

    @property
    def of_margin_bytes(self) -> int:
        """Bytes held beyond an `auto` budget, within its margin."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEnergy:
    """Energy that the computer's own counter measured, from the end of the first step on, with what ran between steps.

    Attributes:
        source: "NVML": the GPU's board; "RAPL": the processor's packages, and their memory where it is counted. Both
            count all processes.
        millijoules: thousandths of a joule.
        steps: steps that ended in that time.
        step_millijoules: a step's share; what ran between steps is part of it.
    """

    source: MeterSource
    millijoules: int
    steps: int
    step_millijoules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What one step did.

    Attributes:
        mode: "observe" (everything swapped, and the step recorded), "frugal" (no plan: all is swapped that has no
            room), "plan", or "keep" (it fits: nothing is moved).
        step_ns: time from its first module call or large save to the end of its last optimizer step.
        stall_ns: time it waited for transfers.
        swapped_out_bytes: bytes that left the device.
        swapped_back_bytes: bytes that came back.
        mismatches: saved storages that were not what the plan expected.
        recomputed_bytes: bytes that recipes rebuilt.
        recompute_ns: time that the recipes took.
        checked: whether all that autograd saved was compared with what the plan expects; see hook_sampling.py.
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
    """Return the figures of a step that has ended."""
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


def summary(head: str, kinds: Kinds, known: StepKind, steps: Sequence[StepFigures], count: int) -> list[str]:
    """Return the summary: one line, and a table if storages are moved or dropped.

    Args:
        head: the beginning of the first line.
        kinds: what each kind of step holds.
        known: the kind of step that ran last.
        steps: figures of steps, the last step's last.
        count: how many steps ended.
    """
    last, plan = steps[-1], known.plan
    peak_bytes = kinds.planned_peak_bytes
    head = f"{head}, planned peak {format_bytes(peak_bytes)}" if peak_bytes else head
    if not any(step.mode == "plan" for step in steps) and not plan.decides:
        fits = "it fits, nothing is moved" if kinds.fit(plan.budget_bytes) else "no plan moves anything"
        unplanned = sum(step.mode == "frugal" for step in steps)
        more = f", of which {unplanned} had no plan" if unplanned else ""
        return [f"{head}: {fits} ({count} steps{more})"]
    head = head if peak_bytes else f"{head}, {NO_PLAN}"
    found = decided(known.trace, plan)
    rows = [("", "storages", "size"), *((s.what, str(s.storages), format_bytes(s.size_bytes)) for s in found.shares)]
    kept = "  the plan is that of an earlier start of this training (`elbowroom cache`)"
    return [
        f"{head} ({count} steps, {sum(step.mismatches for step in steps)} mismatches)",
        *_table(rows),
        f"  the last step took {format_ns(last.step_ns)}: {', '.join(_in_step(found, last))}",
        *([kept] if known.course.is_kept else []),
    ]


def unplanned(steps: Sequence[StepFigures], reason: str) -> Iterator[str]:
    """Yield a line on the steps that followed no plan and were not recorded either, if there is a reason for it."""
    count = sum(step.mode == "frugal" for step in steps)
    if reason and count:
        yield f"  {count} of the last {len(steps)} steps followed no plan: {reason}"


def refused(count: int) -> Iterator[str]:
    """Yield a line on ops that got no memory, after which the script went on: it has caught their errors."""
    if count:
        ops = "1 op" if count == 1 else f"{count} ops"
        yield f"  MEMORY WAS REFUSED to {ops}, and the script went on: what their steps computed is lost"


def held(records: HeldMemory) -> Iterator[str]:
    """Yield lines on the measured memory, and on bytes beyond the budget."""
    kept, most = records.kinds.keep_all_bytes, records.held_bytes
    if kept:
        so_much = f"; measured were at most {format_bytes(most)}" if most else ""
        yield f"  keeping everything takes {format_bytes(kept)}{so_much}"
    if records.over_bytes:
        yield (
            f"  THE BUDGET WAS NOT HELD: {format_bytes(records.over_bytes)} more than it were, in steps that are "
            "observed, the first of each kind, or by what ran between steps"
        )
    if records.of_margin_bytes:
        yield (
            f"  {format_bytes(records.of_margin_bytes)} more than the budget were held, of the memory that `auto` "
            "leaves free"
        )


def energy_lines(measured: MeasuredEnergy | None, simulated: Energy | None) -> Iterator[str]:
    """Yield lines on the energy of a step, measured and simulated ones apart."""
    if measured is not None:
        whose = "the GPU's board" if measured.source == "NVML" else "the processor"
        each, steps = format_joules(measured.step_millijoules), f"{measured.steps} steps with what ran between them"
        yield f"  energy, measured by {measured.source}: {each} a step of {whose}, over {steps}"
    if simulated is not None:
        yield f"  energy of a step, simulated: {simulated.words}, of the GPU's board and the copies"


def _in_step(found: Decided, last: StepFigures) -> Iterator[str]:
    """Yield what a step did, in words."""
    yield f"{format_bytes(last.swapped_out_bytes)} out and {format_bytes(last.swapped_back_bytes)} back"
    yield f"stall {format_ns(last.stall_ns)}"
    if found.recipe_ops:
        took = format_ns(last.recompute_ns)
        yield f"{format_bytes(last.recomputed_bytes)} recomputed by {found.recipe_ops} ops in {took}"
    if found.algorithms:
        yield f"{found.algorithms} ops with another algorithm"


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the rows as lines: words aligned left, numbers right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, storages, size in rows:
        yield f"  {what:<{wide[0]}}  {storages:>{wide[1]}}  {size:>{wide[2]}}"
