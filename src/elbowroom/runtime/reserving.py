"""Plans for a budget of reserved bytes, where the device has a caching allocator.

Planners count allocated bytes; what the allocator reserves for them is more, by the free memory between blocks, and
is known once a plan is played (elbowroom/cycles.py). So a plan is made for the whole budget, and if it reserves more,
for less by what it reserves too much, until one fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count

from elbowroom.cycles import Cycle, cycle, early_waits
from elbowroom.errors import Infeasible
from elbowroom.lifetimes import last_step, listed
from elbowroom.machine import Machine
from elbowroom.moves import moves_of_plan, need, tiers_of_plan
from elbowroom.plan import Plan
from elbowroom.planners import Asking, Judge, Means, any_recompute, asking
from elbowroom.runtime.asked import Asked
from elbowroom.simulate import simulate
from elbowroom.timeline import Curve, Timeline
from elbowroom.trace import Trace
from elbowroom.units import Amount, Budget, format_bytes

PLANNER = "swap_greedy"
PLANNER_OF_STATES = "swap_states"
PLANNER_OF_RECOMPUTES = "optimal" if find_spec("highspy") else "capuchin"
"""The best that knows recomputes; without the solver, the best that needs none."""
ROUNDS = 10
"""Plans that are tried for one budget."""
ROUNDS_OF_RECOMPUTES = 3
TIME_LIMIT_S = 2.0
"""Of each program that a planner solves: training waits for the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A plan and how closely its writes are waited for.

    Attributes:
        plan: what to swap and to recompute.
        waiting: by position of a tick, how many writes must have ended there; None where only room counts.
        peak_bytes: what a budget of the device counts, at most.
    """

    plan: Plan
    waiting: Mapping[int, int] | None
    peak_bytes: int


def course_within(trace: Trace, machine: Machine, budget: Budget, asked: Asked, judge: Judge = any_recompute) -> Course:
    """A plan whose peak is within the budget of the device; optimizer states move only where nothing else meets it.

    Where managed memory is asked for, what no plan can do without may lie there.

    Args:
        trace: what runs.
        machine: where.
        budget: of the tiers.
        asked: knobs of the plan.
        judge: whether a recompute can be carried out.

    Raises:
        Infeasible: no plan that was tried is.
    """
    of_saves = without(asked, "state")
    ways = [of_saves] if of_saves == asked else [of_saves, asked]
    allowed_bytes = budget.device.size_bytes or 0
    most_bytes = allowed_bytes + asked.managed_bytes
    for turn in count():
        within = replace(budget, device=Amount(size_bytes=allowed_bytes))
        for means in ways:
            try:
                return _course_within(trace, machine, within, means, judge)
            except Infeasible as problem:
                if means == asked and allowed_bytes == most_bytes:
                    raise
                least_bytes = problem.least_feasible_bytes
        # What lies in managed memory is slow, so that as little as can be does.
        more_bytes = allowed_bytes + asked.managed_bytes // 8 if turn else least_bytes
        allowed_bytes = min(most_bytes, max(more_bytes, allowed_bytes + 1))
    raise AssertionError("the last turn returns or raises")


def without(asked: Asked, means: Means) -> Asked:
    """All means but one."""
    return replace(asked, allow=tuple(each for each in asked.allow if each != means))


def _course_within(trace: Trace, machine: Machine, budget: Budget, asked: Asked, judge: Judge) -> Course:
    budget_bytes = budget.device.size_bytes or 0
    if machine.allocator == "exact":
        return course_of(trace, machine, next(_plans(trace, machine, budget, asked, judge)))
    least = 0
    for made in _reserving(trace, machine, budget, asked, judge):
        for found in _courses(trace, machine, made):
            if found.peak_bytes <= budget_bytes:
                return replace(found, plan=replace(made, budget_bytes=budget_bytes))
            least = min(least or found.peak_bytes, found.peak_bytes)
    raise Infeasible(
        f"budget: given {format_bytes(budget_bytes)} ({budget_bytes} bytes) of reserved memory; the plans that were "
        f"tried reserve {format_bytes(least)} ({least} bytes) at least, free memory between blocks included; raise the "
        "budget to that, or set PYTORCH_ALLOC_CONF=expandable_segments:True before torch starts",
        budget_bytes=budget_bytes,
        least_feasible_bytes=least,
    )


def _reserving(trace: Trace, machine: Machine, budget: Budget, asked: Asked, judge: Judge) -> Iterator[Plan]:
    """As `_plans`; where not even what is allocated fits, the error says what is reserved for the least of that."""
    try:
        yield from _plans(trace, machine, budget, asked, judge)
    except Infeasible as problem:
        least = replace(budget, device=Amount(size_bytes=problem.least_feasible_bytes))
        plans = _plans(trace, machine, least, asked, judge)
        reserved = min(found.peak_bytes for made in plans for found in _courses(trace, machine, made))
        raise Infeasible(
            f"{problem} These are allocated bytes; for such plans the allocator reserves {format_bytes(reserved)} "
            f"({reserved} bytes): give at least so much.",
            budget_bytes=problem.budget_bytes,
            least_feasible_bytes=reserved,
        ) from None


def _plans(trace: Trace, machine: Machine, budget: Budget, asked: Asked, judge: Judge) -> Iterator[Plan]:
    """Plans for less and less allocated bytes; in the end the one that has all away as long as can be."""
    # A budget above what the machine has is no limit here, and `plan` would refuse it.
    allowed, least = min(budget.device.size_bytes or 0, machine.tiers[0].capacity_bytes), 0
    ask = _asking(trace, machine, budget, asked, judge)
    for turn in range(ROUNDS_OF_RECOMPUTES if "recompute" in asked.allow else ROUNDS):
        try:
            yield ask.plan(allowed)
        except Infeasible as problem:
            if not turn:
                raise
            least = problem.least_feasible_bytes
        if allowed == least:
            break
        allowed = max(least, allowed - allowed // 12)
    if asked.planner is None and "swap" in asked.allow:
        everything = replace(asked, planner="threshold", options={"size_bytes": 1})
        try:
            last = _asking(trace, machine, budget, everything, judge).plan(budget.device.size_bytes or 0)
        except Infeasible:
            return
        yield last


def _asking(trace: Trace, machine: Machine, budget: Budget, asked: Asked, judge: Judge) -> Asking:
    return asking(
        trace,
        replace(machine, allocator="exact"),
        budget,
        asked.planner or _planner(asked.allow),
        asked.min_size_bytes,
        asked.options,
        asked.allow,
        TIME_LIMIT_S,
        modules=asked.selection(),
        judge=judge,
    )


def _planner(allow: Sequence[Means]) -> str:
    if "recompute" in allow or "algorithm" in allow:
        return PLANNER_OF_RECOMPUTES
    return PLANNER_OF_STATES if "state" in allow else PLANNER


def course_of(trace: Trace, machine: Machine, made: Plan) -> Course:
    """The way to follow a plan that compute waits least in."""
    if machine.allocator != "exact":
        return next(_courses(trace, machine, made))
    step = last_step(trace)
    return Course(plan=made, waiting=None, peak_bytes=int(need(step, moves_of_plan(step, made)).max()))


def _courses(trace: Trace, machine: Machine, made: Plan) -> Iterator[Course]:
    """Ways to follow a plan on a machine with a caching allocator, the one that compute waits least in first."""
    step = last_step(trace)
    moves = moves_of_plan(step, made)
    tiers = tiers_of_plan(step, made, moves)
    for rates in (machine, None):
        waiting = early_waits(step, moves, tiers, rates)
        held = cycle(step, moves, waiting, machine.allocator)
        yield Course(plan=made, waiting=waiting, peak_bytes=int(held.reserved.max()))


def simulated(trace: Trace, machine: Machine, course: Course) -> Timeline:
    """What a step of many under a plan should do."""
    line = simulate(trace, machine, course.plan)
    if machine.allocator == "exact":
        return line
    step = last_step(trace)
    held: Cycle = cycle(step, moves_of_plan(step, course.plan), course.waiting or {}, machine.allocator)
    at_ns = tuple(span.start_ns for span in line.spans if span.kind == "op")
    device = [
        Curve(tier="device", kind="allocated", at_ns=at_ns, size_bytes=tuple(listed(held.allocated))),
        Curve(tier="device", kind="reserved", at_ns=at_ns, size_bytes=tuple(listed(held.reserved))),
    ]
    return replace(line, curves=(*device, *(curve for curve in line.curves if curve.tier != "device")))
