"""confirming: plans whose reserved bytes, not only their allocated ones, stay within the budget.

Computes: for a machine with a caching allocator, the fastest plan found whose replay stays within the budget. The
budget is the allocator's limit in the replay (Note: [At the limit] in simulate/reserved_curve.py). What the allocator
holds follows from the order and the sizes of all blocks. No bound of it is known that is easy to plan with. So plans
are made for fewer allocated bytes until the replay of one is within the budget, and then for more.
Reference: bisection; the replay is elbowroom.allocator. Optimal: never provably, as reserved bytes need not grow with
allocated ones. Ignores: what the simulation ignores. Cost: TIGHTENINGS times the planner's, plus replays of its plans.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.errors import Infeasible
from elbowroom.files.field_rules import MAX_INT
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import reserves_more
from elbowroom.planners.budget.reserved_search import Look, Narrowing, lowest, search
from elbowroom.planners.problem import Problem, peak_of
from elbowroom.simulate.driver_waits import DRIVER
from elbowroom.simulate.simulate import simulate
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan
from elbowroom.trace import Trace

TIGHTENINGS = 5
"""Number of budgets of allocated bytes that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Plan for a budget, with the results of its simulation.

    Attributes:
        plan: the plan, with the requested budget.
        step_ns: time of the step, waits for the driver included.
        reserved_bytes: peak of reserved bytes; if it exceeds the budget, the peak without a limit.
        is_driven: whether compute waits for the driver.
    """

    plan: Plan
    step_ns: int
    reserved_bytes: int
    is_driven: bool

    @property
    def fits(self) -> bool:
        """Whether the allocator stays within the budget."""
        return self.reserved_bytes <= self.plan.budget_bytes

    @property
    def is_free(self) -> bool:
        """Whether the allocator stays within the budget, and compute never waits for the driver."""
        return self.fits and not self.is_driven


def replayed(trace: Trace, machine: Machine, made: Plan, budget_bytes: int) -> Replayed:
    """Simulate a plan with an allocator that may reserve `budget_bytes`."""
    asked = replace(made, budget_bytes=budget_bytes)
    line = simulate(trace, machine, asked)
    return Replayed(
        plan=asked,
        step_ns=line.step_ns,
        reserved_bytes=line.peak_reserved_bytes,
        is_driven=any(span.name == DRIVER for span in line.spans),
    )


def limit_of_plan(trace: Trace, machine: Machine, made: Plan) -> int:
    """Return the least limit of an allocator that a plan runs with, to SEGMENT_BYTES."""
    step = with_algorithms(last_step(trace), made.algorithms)
    least = peak_of(step, moves_of_plan(step, made))
    fits = max(least, simulate(trace, machine, replace(made, budget_bytes=MAX_INT)).peak_reserved_bytes)
    return lowest(lambda limit: replayed(trace, machine, made, limit).fits, least - 1, fits, SEGMENT_BYTES)


def confirmed(problem: Problem, planner: str, make: Callable[[Problem], Plan], made: Plan | None = None) -> Plan:
    """Find a plan whose reserved bytes are within the budget, with a planner that counts allocated bytes.

    Waits for the driver are avoided if a plan without them is found.

    Args:
        problem: the problem; its budget counts reserved bytes.
        planner: name of the planner.
        make: the planner.
        made: its plan for the problem, if that is known.

    Raises:
        Infeasible: no plan that was tried is within the budget.
    """
    found, least_bytes = within_reserved(problem, make, made)
    if found is not None:
        return found
    frugal = make(replace(problem, budget_bytes=least_bytes))  # the same plan for any budget that is refused
    raise reserves_more(problem, planner, limit_of_plan(problem.step.trace, problem.machine, frugal))


def within_reserved(
    problem: Problem, make: Callable[[Problem], Plan], made: Plan | None = None
) -> tuple[Plan | None, int]:
    """Return the plan of `confirmed`, or None, and the least allocated bytes that the planner can plan for.

    Raises:
        Infeasible: the planner itself refuses the budget.
    """
    trace, machine, budget_bytes = problem.step.trace, problem.machine, problem.budget_bytes
    looked = [replayed(trace, machine, make(problem) if made is None else made, budget_bytes)]
    if looked[0].is_free:
        return looked[0].plan, 0

    def look(allowed_bytes: int) -> Look:
        looked.append(replayed(trace, machine, make(replace(problem, budget_bytes=allowed_bytes)), budget_bytes))
        return Look(fits=looked[-1].is_free)

    least_bytes = _least_bytes(problem, make)
    with suppress(Infeasible):
        search(Narrowing(budget_bytes, least_bytes), look, TIGHTENINGS - 1, first=Look(fits=False))
        if least_bytes <= budget_bytes and not any(each.fits for each in looked):  # try the least allocated bytes
            look(least_bytes)
    fit = [each for each in looked if each.fits]
    return (min(fit, key=lambda each: each.step_ns).plan if fit else None), least_bytes


def _least_bytes(problem: Problem, make: Callable[[Problem], Plan]) -> int:
    """Return the least allocated bytes that a planner can plan for."""
    try:
        make(replace(problem, budget_bytes=0))
    except Infeasible as found:
        return found.least_feasible_bytes
    return 0
