"""swap_states: swap_greedy, and optimizer states away too if its swaps of saved storages are not enough.

Computes: swap_greedy's plan if there is one. If not, the states that are idle longest are away: the fewest with which
swaps of saves can meet the budget, or more. Of the fewest also those alone that have to be away, for the budget and for
one with some room to spare. Each comes back at the latest tick that hides its copy if there is room, or when it is
used. swap_greedy plans the rest. The fastest of these few plans, played, wins; of those nearly as fast, the one that
moves the fewest bytes. Gradients and parameters move like states if they are allowed to.
Reference: Rajbhandari et al., "ZeRO-Infinity" (SC 2021), for states on lower tiers; here only if nothing else is
enough. Optimal: never provably; `optimal` looks further. Ignores: recomputes; sets that its order does not lead to.
Cost: a weighing of all swaps per halving of the states, then ten plans of swap_greedy at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elbowroom.errors import Infeasible
from elbowroom.plan import Plan
from elbowroom.planners.baselines.swap_greedy import swap_greedy
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.optimal.state_choice import deciding, indispensable, placed, states_on_offer
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of
from elbowroom.simulate.lanes import play
from elbowroom.step.last_step import Ints
from elbowroom.step.moves import moves_of_plan, tiers_of_plan

NAME = "swap_states"
NEARLY = 1.02
"""A plan that takes at most this many times as long as the fastest is as good: copies of less bytes spare the link."""
ROOM_SHARE = 16
"""One set leaves one such part of the budget free, so that states can come back before they are used."""


def swap_states(problem: Problem) -> Plan:
    """Meet the budget with swaps of saves, and if these are not enough, of optimizer states too.

    Raises:
        Infeasible: the step needs more than the budget with every save and state swapped and back on demand.
    """
    try:
        return replace(swap_greedy(problem), planner=NAME)
    except Infeasible:
        n = states_on_offer(problem)
        if not len(n):
            raise
    plans = list(_plans(problem, n))
    if not plans:
        least = _on_demand(problem, n)
        raise infeasible(least, NAME, movable(least))
    costs = [_cost(problem, made) for made in plans]
    enough_ns = NEARLY * min(step_ns for step_ns, _ in costs)
    return min(zip(costs, plans, strict=True), key=lambda each: (each[0][0] > enough_ns, each[0][::-1]))[1]


def _on_demand(problem: Problem, n: Ints) -> Problem:
    """Return the problem with states away until they are used."""
    return deciding(problem, n, problem.step.first_read[n])


def _enough(problem: Problem, n: Ints) -> bool:
    left = _on_demand(problem, n)
    return peak_of(left.step, moves_on_demand(left.step, movable(left))) <= problem.budget_bytes


def _plans(problem: Problem, n: Ints) -> Iterator[Plan]:
    """Yield plans with the fewest states away that are enough, with half of the others too, and with all.

    Before them come those with the states alone that have to be away.
    """
    few, many = 0, len(n)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if _enough(problem, n[:middle]) else (middle + 1, many)
    enough, budget_bytes = n[:few], problem.budget_bytes
    sets = [indispensable(problem, enough, budget_bytes - room) for room in (0, budget_bytes // ROOM_SHARE)]
    sets += [n[:count] for count in sorted({few, (few + len(n)) // 2, len(n)})]
    for among in sets:
        for left in (placed(problem, among), _on_demand(problem, among)):
            try:
                saves = swap_greedy(replace(left, states=None))
            except Infeasible:
                continue
            yield as_plan(left, NAME, moves_of_plan(left.step, saves))


def _cost(problem: Problem, made: Plan) -> tuple[int, int]:
    """Return the simulated time, then the bytes moved."""
    moves = moves_of_plan(problem.step, made)
    done = play(problem.step, moves, problem.machine, tiers_of_plan(problem.step, made, moves))
    return done.step_ns, int(moves.size.sum())
