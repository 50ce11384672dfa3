"""keep_all: the plan that moves nothing.

Computes: the empty plan. Reference: what PyTorch does by itself. Optimal: whenever the step fits, as nothing moves and
nothing waits. Ignores: nothing. Cost: linear in the events.
"""

from __future__ import annotations

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.problem import Problem, as_plan

NAME = "keep_all"


def keep_all(problem: Problem) -> Plan:
    """Keep every storage.

    Raises:
        Infeasible: the step needs more than the budget.
    """
    if problem.step.level.max() > problem.budget_bytes:
        raise infeasible(problem, NAME, None)
    return as_plan(problem, NAME)
