"""arranging: swaps back as early as there is room, then each as late as possible at no cost.

Computes: when each swap back of a chosen set starts, if the step waits for copies back. Reference: earliest deadline
first (Jackson, "Scheduling a production line to minimize maximum tardiness", 1955). The copies share one serial lane.
Each starts at the first tick from which it fits until its read, in the order of need. A second pass looks at the play.
It starts each at the last tick that still lets it run when it ran, or when it had to.
Optimal: for a lane that is never idle while copies are due. Ignores: that delaying a copy needed later can make room
for one needed soon. placing.py is its counterpart for links with time to spare; `optimal` weighs both.
Cost: n log n in the swaps, plus the slots each storage is back early.
"""

from __future__ import annotations

import numpy as np

from elbowroom.planners.problem import Problem, moves_on_demand
from elbowroom.simulate.lanes import Play, copy_ns
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves, in_order_of_need, moves_of, need
from elbowroom.step.routes import link_to


def bring_back_early(problem: Problem, n: Ints) -> Moves:
    """Swap saves `n`, each back at the first tick, in the order of need, from which it fits until it is read."""
    step, moves = problem.step, moves_on_demand(problem.step, n)
    tick_slot = step.slots(step.points(step.ticks))
    first = np.searchsorted(step.ticks, step.idle_from[moves.n], side="right").tolist()
    last = np.searchsorted(step.ticks, step.first_read[moves.n], side="left").tolist()
    needed, back, size = need(step, moves), moves.back.copy(), moves.size.tolist()
    earliest = 0
    for i in _returning(step, moves):
        earliest = max(first[i], earliest)
        begin, end = int(tick_slot[min(earliest, last[i])]), int(tick_slot[last[i]])
        full = np.nonzero(needed[begin:end] > problem.budget_bytes - size[i])[0]
        if len(full):
            earliest = int(np.searchsorted(tick_slot, begin + int(full[-1]) + 1))
        tick = min(earliest, last[i])
        needed[tick_slot[tick] : end] += size[i]
        back[i], earliest = step.ticks[tick], tick
    return moves_of(step, moves.n, back)


def bring_back_later(problem: Problem, moves: Moves, done: Play) -> Moves:
    """Start each swap back of a play as late as its copy, in the same order on the lane, still ends in time."""
    if problem.tier is None:
        return moves
    step, back = problem.step, moves.back.copy()
    _, back_ns = copy_ns(link_to(problem.machine, problem.tier), moves.size)
    tick_ns = done.room_ns[step.ticks - step.first_op]
    due_ns = done.position_ns.copy()
    for rebuild, run_ns in reversed(list(zip(moves.rebuilds, listed(done.run_ns), strict=True))):
        due_ns[rebuild.position - step.first_op] = run_ns
    read_ns, copy_back_ns = listed(due_ns[step.first_read[moves.n] - step.first_op]), listed(back_ns)
    order, after = _returning(step, moves), float("inf")
    for i in reversed(order):
        after = min(read_ns[i], after) - copy_back_ns[i]
        tick = max(0, int(np.searchsorted(tick_ns, after, side="right")) - 1)
        back[i] = max(back[i], min(int(step.ticks[tick]), int(step.first_read[moves.n[i]])))
    # Copies run in the order they start, so no copy may start before one that is needed earlier.
    back[order] = np.maximum.accumulate(back[order])
    return moves_of(step, moves.n, back)


def _returning(step: LastStep, moves: Moves) -> list[int]:
    """Return the indices of the moves that come back, in the order of need."""
    return [i for i in in_order_of_need(step, moves) if step.returns[moves.n[i]]]
