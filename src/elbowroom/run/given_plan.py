"""Plan that the user gave to a run, translated to the trace that the run has recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.machine import Machine
from elbowroom.notices import Once, warn_once
from elbowroom.plan import Plan
from elbowroom.planners import check
from elbowroom.planners.budget.run_budget import Course, course_of
from elbowroom.step.last_step import last_step
from elbowroom.step.translate import translated
from elbowroom.trace import Trace
from elbowroom.units import format_bytes

ANOTHER = (
    "it is for another model, batch or shape, or its trace is of a GPU that was not there. Give that trace too "
    "(--trace, trace=; `elbowroom plan --trace FILE` writes it), or make a plan from a trace of this training"
)


@final
@dataclass(frozen=True, slots=True)
class GivenPlan:
    """Plan to follow.

    Attributes:
        plan: the plan as given.
        source: the trace that it was made for, if that was given too.
    """

    plan: Plan
    source: Trace | None = None

    def on(self, trace: Trace) -> Plan:
        """Return the plan in terms of a trace of this run. Raises InvalidPlan."""
        if self.source is None or self.plan.trace_id == trace.id:
            return moved_to(trace, self.plan)
        return translated(self.plan, self.source, trace)


def warn_of_peak(once: Once, peak_bytes: int, budget_bytes: int) -> None:
    """Warn that a given plan reserves more than its budget in this run."""
    warn_once(
        once,
        "peak",
        f"elbowroom: the given plan reserves {format_bytes(peak_bytes)} in this run, more than its budget "
        f"of {format_bytes(budget_bytes)}; give `within` the budget in place of the plan",
    )


def given_plan(plan: object, trace: object) -> GivenPlan | None:
    """Check the plan and the trace that `within` was given; None without a plan.

    Raises:
        UsageError: one has another type, or there is a trace without a plan.
    """
    for name, given, kind in (("plan", plan, Plan), ("trace", trace, Trace)):
        if given is not None and not isinstance(given, kind):
            raise UsageError(
                f"within: given {name}={type(given).__name__}; allowed is a {kind.__name__}, such as "
                f"{kind.__name__}.load(path) reads"
            )
    if isinstance(plan, Plan):
        return GivenPlan(plan, trace if isinstance(trace, Trace) else None)
    if trace is not None:
        raise UsageError("within: given trace without plan; allowed is the trace that a plan was made from; give both")
    return None


def course_of_moved(trace: Trace, machine: Machine, made: Plan, budget_bytes: int) -> Course | None:
    """Return the course of a plan that was made for another step of the kind; None if it does not fit this step.

    Args:
        trace: the trace of this step.
        machine: the machine that it runs on.
        made: the plan.
        budget_bytes: the budget that the course has to meet.
    """
    try:
        moved = replace(moved_to(trace, made), budget_bytes=budget_bytes)
        check(trace, moved, machine)
    except InvalidPlan:
        return None
    course = course_of(trace, machine, moved, budget_bytes)
    return course if course.peak_bytes <= budget_bytes else None


def moved_to(trace: Trace, given: Plan) -> Plan:
    """Shift the positions of a plan, made for another trace of the same step, to this trace.

    Raises:
        InvalidPlan: no shift brings the plan's storages or ops to those of this trace.
    """
    if given.trace_id == trace.id or not given.decides:
        return replace(given, trace_id=trace.id)
    shift = _shift(trace, given)
    swaps = tuple(
        replace(s, out_after_op=s.out_after_op + shift, back_before_op=s.back_before_op + shift) for s in given.swaps
    )
    recomputes = tuple(
        replace(r, recipe=tuple(op + shift for op in r.recipe), before_op=r.before_op + shift) for r in given.recomputes
    )
    algorithms = tuple(replace(each, op=each.op + shift) for each in given.algorithms)
    return replace(given, trace_id=trace.id, swaps=swaps, recomputes=recomputes, algorithms=algorithms)


def _shift(trace: Trace, given: Plan) -> int:
    """Return how many ops later the step begins in this trace."""
    if given.swaps:
        return _by_swaps(trace, given)
    return _by_recomputes(trace, given) if given.recomputes else _by_algorithms(trace, given)


def _by_swaps(trace: Trace, given: Plan) -> int:
    """Find the shift from the position at which the first swapped storage leaves."""
    step = last_step(trace)
    storages = [trace.storages[s.storage] if s.storage < len(trace.storages) else None for s in given.swaps]
    single = (s for s, known in zip(given.swaps, storages, strict=True) if known and known.category != "parameter")
    first = next(single, given.swaps[0])
    n = step.window_of.get(first.storage)
    if n is None:
        raise InvalidPlan(f"plan: it swaps storage {first.storage}, which this step does not save; {ANOTHER}")
    return int(step.saved_at[n]) - 1 - first.out_after_op


def _by_recomputes(trace: Trace, given: Plan) -> int:
    """Find the shift from the first read of the storages that the first recipe rebuilds."""
    first, step = given.recomputes[0], last_step(trace)
    reads = [int(step.first_read[n]) for n, save in enumerate(step.saves) if save.storage in first.storages]
    shift = min(reads, default=step.first_op) - first.before_op
    if len(reads) < len(first.storages) or first.recipe[0] + shift < step.first_op:
        raise InvalidPlan(
            f"plan: it recomputes storage {first.storages[0]}, which no op of this step makes so; {ANOTHER}"
        )
    return shift


def _by_algorithms(trace: Trace, given: Plan) -> int:
    """Find the shift from the ops of the last step that offer the algorithms: 0 if that fits, else the only one."""
    begin, end = trace.steps[-1]
    offers = [{choice.name for choice in op.choices} for op in trace.ops]

    def fits(shift: int) -> bool:
        places = [(each.op + shift, each.choice) for each in given.algorithms]
        return all(begin <= op < end and choice in offers[op] for op, choice in places)

    first = given.algorithms[0]
    found = [shift for shift in range(begin - first.op, end - first.op) if fits(shift)]
    if 0 in found or len(found) == 1:
        return 0 if 0 in found else found[0]
    places = ", ".join(f"op {first.op + shift}" for shift in found[:3]) or "no op"
    raise InvalidPlan(
        f"plan: it runs op {first.op} with {first.choice!r}, which may be {places} of this step; {ANOTHER}, such as "
        "`room.trace`"
    )
