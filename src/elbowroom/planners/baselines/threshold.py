"""threshold: swap every storage of at least a given size, each back only when it is read.

Computes: every movable save that is large enough, swapped. Nothing is prefetched.
Reference: IBM's Caffe with Large Model Support (`caffe train -lms N`, N in KiB; branch master-lms of ibmsoe/caffe):
memory chunks above the size live in host memory and are fetched when a layer computes with them.
Optimal: for memory at a size of 0, as swap_all with swaps back on demand. Ignores: the budget (a plan that does not
meet it is refused), copies that could be hidden, time.
Cost: linear in the saves.
"""

from __future__ import annotations

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.problem import Problem, movable, moves_on_demand

NAME = "threshold"
SIZE_BYTES = 8192 * 2**10
"""Size as in the `-lms 8192` of IBM's examples."""


def threshold(problem: Problem, *, size_bytes: int = SIZE_BYTES) -> Plan:
    """Swap large storages.

    Args:
        problem: the problem.
        size_bytes: storages from this size on are swapped.

    Raises:
        Infeasible: the plan holds more than the budget.
    """
    n = movable(problem)
    return fitting(problem, NAME, moves_on_demand(problem.step, n[problem.step.size[n] >= size_bytes]))
