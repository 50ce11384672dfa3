"""placing: when each swap back starts.

Computes: for a chosen set of swaps, the latest tick at which each swap back can start and still be hidden.
Reference: Meng et al., "Training Deeper Models by GPU Memory Optimization on TensorFlow" (NIPS 2017 workshop), who
trigger a swap-in at the latest op that still hides the copy. Their trigger looks at one tensor. Here the copies share
one serial lane. So a pass over the reads, from the last to the first, gives each copy the time that later copies leave.
If the storage would not fit yet, its trigger moves later, down to the read itself.
Optimal: for one copy on an idle lane; in general a heuristic, weighed by simulation.
Ignores: that stalls delay the reads after them.
Cost: n log n in the swaps, plus the slots that each storage is back early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from elbowroom.planners.problem import Problem, moves_on_demand
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Ints
from elbowroom.step.moves import Moves, moves_of, need
from elbowroom.step.routes import link_to


def place_backs(problem: Problem, n: Ints, lead: float = 1.0) -> Moves:
    """Place the swaps back of saves `n`.

    Args:
        problem: the step, the link and the budget. The budget must be met with every swap back on demand.
        n: the saves to swap.
        lead: how far ahead of its read a swap back starts, in durations of its copy; above 1 allows for slower links.

    Returns:
        The moves; they need no more than the budget.
    """
    step = problem.step
    if problem.tier is None or not len(n):
        return moves_on_demand(step, n)
    _, back_ns = copy_ns(link_to(problem.machine, problem.tier), step.size[n])
    tick_slot = step.slots(step.points(step.ticks)).tolist()
    tick_ns = step.nominal_ns(step.ticks).tolist()
    first = np.searchsorted(step.ticks, step.idle_from[n], side="right").tolist()
    trigger = np.searchsorted(step.ticks, step.first_read[n], side="left")
    last, size, copy = trigger.tolist(), step.size[n].tolist(), (lead * back_ns).tolist()
    needed, next_start = need(step, moves_on_demand(step, n)), float("inf")
    order = [i for i in np.lexsort((-n, step.first_read[n])).tolist() if step.returns[n[i]]]
    for i in reversed(order):
        start = min(tick_ns[last[i]], next_start) - copy[i]
        tick = min(max(bisect_right(tick_ns, start) - 1, first[i]), last[i])
        tick = first_that_fits(needed, tick_slot, tick, last[i], problem.budget_bytes - size[i])
        needed[tick_slot[tick] : tick_slot[last[i]]] += size[i]
        trigger[i], next_start = tick, max(start, float(tick_ns[tick]))
    back = step.first_read[n].copy()
    # Copies run in the order they start, so no copy may start before one that is needed earlier.
    back[order] = step.ticks[np.maximum.accumulate(trigger[order])] if order else back[order]
    return moves_of(step, n, back)


def first_that_fits(needed: Ints, tick_slot: list[int], tick: int, last: int, room: int) -> int:
    """Return the first tick from `tick` on, at most `last`, from which no slot until `last` needs more than `room`."""
    full = np.nonzero(needed[tick_slot[tick] : tick_slot[last]] > room)[0]
    return bisect_left(tick_slot, tick_slot[tick] + int(full[-1]) + 1) if len(full) else tick
