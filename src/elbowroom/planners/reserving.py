"""reserving: any planner's plan whose reserved bytes, not only its allocated ones, are within the budget.

Computes: what a planner that knows only allocated bytes makes of the budget; where the machine's allocator is simulated
to hold more than that, what it makes of less, the budget being lowered by what was too much, a few times over, and last
of the least that it can meet.
Reference: docs/estimate.md says what the allocator holds beyond live blocks, and that its model is exact.
Optimal: no; a plan of more allocated bytes may reserve less. Ignores: that a caching allocator empties its cache
before it fails, which is slow.
Cost: a plan and a simulation a round; one simulation where the first plan holds, as that of `optimal` does, which
looks for the fastest among such plans itself (confirming.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from elbowroom.errors import Infeasible
from elbowroom.plan import Plan
from elbowroom.planners.infeasible import reserves_more
from elbowroom.planners.problem import Problem
from elbowroom.simulate import simulate

ROUNDS = 5
"""Plans that are made for less than the budget, before the one for the least."""

Make = Callable[[Problem], Plan]


def lowered(problem: Problem, make: Make) -> Plan:
    """Make a plan whose simulated reserved peak is within the budget.

    Args:
        problem: what is asked; its budget is one of reserved bytes unless the machine's allocator is exact.
        make: makes a plan within so many allocated bytes.

    Raises:
        Infeasible: none is found; the least feasible budget is what the plan of the least allocated bytes reserves.
    """
    made = make(problem)
    if problem.machine.allocator == "exact":
        return made
    reserved_bytes = _reserved(problem, made)
    for less in _lowered(problem, make, reserved_bytes):
        if reserved_bytes <= problem.budget_bytes:
            break
        made, reserved_bytes = less, _reserved(problem, less)
    if reserved_bytes > problem.budget_bytes:
        raise reserves_more(problem, made.planner, reserved_bytes)
    return replace(made, budget_bytes=problem.budget_bytes)


def _lowered(problem: Problem, make: Make, reserved_bytes: int) -> Iterator[Plan]:
    """Plans for less and less, each lower by what the one before it held too much."""
    budget_bytes = problem.budget_bytes
    for _ in range(ROUNDS):
        budget_bytes -= reserved_bytes - problem.budget_bytes
        try:
            made = make(replace(problem, budget_bytes=max(0, budget_bytes)))
        except Infeasible as too_low:
            yield make(replace(problem, budget_bytes=too_low.least_feasible_bytes))
            return
        reserved_bytes = _reserved(problem, made)
        yield made
    try:
        yield make(replace(problem, budget_bytes=0))
    except Infeasible as too_low:
        yield make(replace(problem, budget_bytes=too_low.least_feasible_bytes))


def _reserved(problem: Problem, made: Plan) -> int:
    return simulate(problem.step.trace, problem.machine, made).peak_reserved_bytes
