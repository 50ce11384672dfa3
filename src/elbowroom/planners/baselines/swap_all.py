"""swap_all: swap every storage that may move, each back at the latest tick that hides its copy.

Computes: every movable save swapped, with the swaps back of placing.py. Reference: vDNN-all (Rhu et al., "vDNN:
Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", MICRO 2016), which offloads
every layer's input. Here the unit is the storage. Optimal: for memory, if the swaps back are on demand: no plan of
swaps needs less. Ignores: the cost of a copy. It is the baseline that swap_greedy must not be slower than.
Cost: as placing.py.
"""

from __future__ import annotations

from elbowroom.plan import Plan
from elbowroom.planners.baselines.placing import place_backs
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of

NAME = "swap_all"


def swap_all(problem: Problem) -> Plan:
    """Swap everything that may move.

    Raises:
        Infeasible: the step needs more than the budget even with everything swapped.
    """
    n = movable(problem)
    if peak_of(problem.step, moves_on_demand(problem.step, n)) > problem.budget_bytes:
        raise infeasible(problem, NAME, n)
    return as_plan(problem, NAME, place_backs(problem, n))
