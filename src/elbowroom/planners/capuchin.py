"""capuchin: swap what is idle longest beyond its copies, fetched by a trigger that simulation moves ahead.

Computes: from the recorded times of access, the free time of each save: the time between its last use and its read
back, less both copies. Among those idle where more than the budget is held, the largest free time goes first, until
the budget is met. Each swap back starts its copy's time ahead of the read, later where it would not fit; then, as long
as that makes the step shorter, those that compute waited for start `feedback_percent` of their copy's time earlier.
Reference: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning" (ASPLOS 2020): measured
accesses, free time, triggers ahead, feedback of 5 % of the copy's time.
Optimal: where every chosen save has free time and the lane is idle when it is wanted. Ignores, when it chooses: that
copies share a lane, and sizes.
Cost: n log n in the saves, one look at the slots per save chosen, one play per round of feedback.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from elbowroom.lanes import copy_ns, link_to
from elbowroom.lifetimes import Ints
from elbowroom.moves import Moves, moves_of, need
from elbowroom.plan import Plan
from elbowroom.planners.infeasible import infeasible
from elbowroom.planners.placing import first_that_fits
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, moving, peak_of

NAME = "capuchin"


def capuchin(problem: Problem, *, feedback_percent: int = 5, rounds: int = 40) -> Plan:
    """Swap by measured access.

    Args:
        problem: what is asked.
        feedback_percent: of its copy's time, by which a swap back that was waited for starts earlier in the next round.
        rounds: of feedback at most.

    Raises:
        Infeasible: everything that may move does not meet the budget.
    """
    step = problem.step
    if step.level.max() <= problem.budget_bytes or problem.tier is None:
        if step.level.max() > problem.budget_bytes:
            raise infeasible(problem, NAME, np.zeros(0, np.int64))
        return as_plan(problem, NAME)
    among = movable(problem)
    if peak_of(step, moves_on_demand(step, among)) > problem.budget_bytes:
        raise infeasible(problem, NAME, among)
    n = _chosen(problem, among)
    _, back_ns = copy_ns(link_to(problem.machine, problem.tier), step.size[n])
    return as_plan(problem, NAME, _with_feedback(problem, n, back_ns, feedback_percent / 100, rounds))


def _chosen(problem: Problem, among: Ints) -> Ints:
    """Saves by falling free time until the budget is met."""
    step = problem.step
    moves = moves_on_demand(step, among)
    left = step.slot_peak - problem.budget_bytes
    chosen: list[int] = []
    for i in np.argsort(-free_ns(problem, moves.n), kind="stable").tolist():
        begin, end = moves.begin[i], moves.end[i]
        if begin < end and left[begin:end].max() > 0:
            left[begin:end] -= moves.size[i]
            chosen.append(int(moves.n[i]))
    return np.array(sorted(chosen), np.int64)


def free_ns(problem: Problem, n: Ints) -> Ints:
    """Per save, the time it is idle less that of its two copies."""
    step = problem.step
    if problem.tier is None:
        return np.zeros(len(n), np.int64)
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), step.size[n])
    return step.nominal_ns(step.first_read[n]) - step.nominal_ns(step.idle_from[n]) - out_ns - back_ns


def _with_feedback(problem: Problem, n: Ints, back_ns: Ints, share: float, rounds: int) -> Moves:
    """Start earlier what was waited for, as long as the step becomes shorter."""
    lead_ns = back_ns.astype(np.float64)
    best = moves = _placed(problem, n, lead_ns)
    done = moving(problem, moves)
    best_ns = done.step_ns
    for _ in range(rounds):
        late = sorted({stall.move for stall in done.stalls if not stall.for_write})
        if not late:
            break
        lead_ns[late] += share * back_ns[late]
        moves = _placed(problem, n, lead_ns)
        done = moving(problem, moves)
        if done.step_ns < best_ns:
            best, best_ns = moves, done.step_ns
    return best


def _placed(problem: Problem, n: Ints, lead_ns: Ints | np.ndarray) -> Moves:
    """Each swap back at the last tick its lead ahead of the read, or the first after it from which it fits."""
    step = problem.step
    needed = need(step, moves_on_demand(step, n))
    tick_slot = step.slots(step.points(step.ticks)).tolist()
    tick_ns = step.nominal_ns(step.ticks).tolist()
    first = np.searchsorted(step.ticks, step.idle_from[n], side="right").tolist()
    last = np.searchsorted(step.ticks, step.first_read[n], side="left").tolist()
    size, back = step.size[n].tolist(), step.first_read[n].copy()
    for i in np.lexsort((-n, step.first_read[n])).tolist():
        if step.returns[n[i]]:
            tick = bisect_right(tick_ns, tick_ns[last[i]] - lead_ns[i]) - 1
            tick = min(max(tick, first[i]), last[i])
            tick = first_that_fits(needed, tick_slot, tick, last[i], problem.budget_bytes - size[i])
            needed[tick_slot[tick] : tick_slot[last[i]]] += size[i]
            back[i] = step.ticks[tick]
    return moves_of(step, n, back)
