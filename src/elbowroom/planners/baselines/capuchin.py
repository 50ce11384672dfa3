"""capuchin: swap what is idle much longer than its copies take, and recompute if that is cheaper than a visible swap.

Computes: from the recorded times of access, the free time of each save. That is the time between its last use and its
read back, less both copies. Saves that are idle where more than the budget is held are candidates. Those with the most
free time go first, until the budget is met. If they are not enough, each further save has a cost: the time by which its
copies delay the step, or the time of the ops that rebuild it, whichever is less. Those that save most bytes per second
of cost go first. Each swap back starts its copy's time ahead of the read, or later if it would not fit. Then
feedback follows, as long as the step becomes shorter: swaps back that compute waited for start earlier, by
`feedback_percent` of their copy's time.
Reference: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning" (ASPLOS 2020): measured
accesses, free time, memory saving per second, triggers ahead, feedback of 5 % of the copy's time.
Optimal: if every chosen save has free time and the lane is idle when it is wanted. Ignores, when it chooses: that
copies share a lane. So simulations decide how many saves with free time are swapped before the rest is weighed
(`SHARES`).
Adapted: a storage is rebuilt from what is on the device. The paper's chains of rebuilt sources are left out.
Cost: n log n in the saves, one look at the slots per save chosen, one play per round of feedback, and the recipes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elbowroom.plan import Plan
from elbowroom.planners.baselines.placing import first_that_fits
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, moving, peak_of
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Ints
from elbowroom.step.moves import Moves, moves_of, need
from elbowroom.step.rebuilds import Rebuild, rebuild_of
from elbowroom.step.recipes import RecomputeOption, options
from elbowroom.step.routes import link_to

NAME = "capuchin"
SHARES = (1.0, 0.5, 0.25, 0.0)
"""Shares of the needed saves with free time that go first, by their free time."""


def capuchin(problem: Problem, *, feedback_percent: int = 5, rounds: int = 40) -> Plan:
    """Swap and recompute by measured access.

    Args:
        problem: the problem.
        feedback_percent: share of its copy's time by which a swap back starts earlier if compute waited for it.
        rounds: most rounds of feedback.

    Raises:
        Infeasible: neither its choice nor swapping everything that may move meets the budget.
    """
    step = problem.step
    if step.level.max() <= problem.budget_bytes:
        return as_plan(problem, NAME)
    among = movable(problem)
    recomputed = list(_recomputed(problem)) if "recompute" in problem.allow else []
    hidden = len(_chosen(problem, among, [], len(among)).n)
    most = dict.fromkeys(int(share * hidden) for share in SHARES) if recomputed else {}
    trials = [_on_demand(problem, _chosen(problem, among, recomputed, first)) for first in most]
    trials.append(_on_demand(problem, _chosen(problem, among, [], len(among))))
    within = [moves for moves in trials if peak_of(step, moves) <= problem.budget_bytes]
    if not within:
        raise infeasible(problem, NAME, among)
    best = min(within, key=lambda moves: moving(problem, _with_feedback(problem, moves, 0.0, 0)).step_ns)
    return as_plan(problem, NAME, _with_feedback(problem, best, feedback_percent / 100, rounds))


def _on_demand(problem: Problem, taken: _Taken) -> Moves:
    n = taken.swapped
    return moves_of(problem.step, n, problem.step.first_read[n], rebuilds=taken.in_order)


@dataclass(slots=True, kw_only=True)
class _Taken:
    """Choice so far.

    Attributes:
        left: bytes per slot still above the budget.
        n: saves to swap.
        rebuilds: what to recompute.
        away: storages that are swapped or rebuilt.
        needed: storages that a chosen recipe reads.
    """

    left: Ints
    n: list[int] = field(default_factory=list[int])
    rebuilds: list[Rebuild] = field(default_factory=list[Rebuild])
    away: set[int] = field(default_factory=set[int])
    needed: set[int] = field(default_factory=set[int])

    @property
    def swapped(self) -> Ints:
        """The saves to swap, ascending."""
        return np.array(sorted(self.n), np.int64)

    @property
    def in_order(self) -> tuple[Rebuild, ...]:
        """The rebuilds in the order in which they run."""
        return tuple(sorted(self.rebuilds, key=lambda rebuild: rebuild.position))

    def helps(self, begin: int, end: int, size_bytes: int) -> bool:
        """Take bytes off the slots from begin to end if one is above the budget. Returns whether one was."""
        if begin >= end or self.left[begin:end].max() <= 0:
            return False
        self.left[begin:end] -= size_bytes
        return True


def _chosen(problem: Problem, among: Ints, recomputed: list[_Shown], first: int) -> _Taken:
    """Choose what leaves: up to `first` saves by their free time, then by bytes saved per second of delay.

    Without recomputes, free time decides for all, even if it is negative.
    """
    step = problem.step
    taken = _Taken(left=step.slot_peak - problem.budget_bytes)
    moves, storages = moves_on_demand(step, among), step.storage_of(among).tolist()
    free, shown = free_ns(problem, among), list(recomputed)

    def swap(i: int) -> None:
        if taken.helps(int(moves.begin[i]), int(moves.end[i]), int(moves.size[i])):
            taken.n.append(int(among[i]))
            taken.away.add(storages[i])

    for i in np.argsort(-free, kind="stable").tolist():
        if recomputed and (free[i] < 0 or len(taken.n) >= first):
            # If other copies take the lane, even a copy with free time delays the step in full.
            cost_ns = -int(free[i]) if free[i] < 0 else idle_ns(problem, among[i : i + 1]) - int(free[i])
            shown.append(_Shown(int(moves.size[i]) / max(1, cost_ns), i, None))
        else:
            swap(i)
    for each in sorted(shown, key=lambda each: -each.bytes_per_ns):
        if each.option is not None:
            _rebuild(problem, taken, each.option)
        elif storages[each.i] not in taken.away and storages[each.i] not in taken.needed:
            swap(each.i)
    return taken


class _Shown(NamedTuple):
    """Swap of a candidate, or a recompute, that costs time.

    Attributes:
        bytes_per_ns: bytes saved per ns that it costs.
        i: index of the candidate, -1 for a recompute.
        option: the recompute.
    """

    bytes_per_ns: float
    i: int
    option: RecomputeOption | None


def _recomputed(problem: Problem) -> Iterator[_Shown]:
    """Yield the recomputes of single storages."""
    for option in options(problem.step, max(1, problem.min_size_bytes)):
        if option.kind == "single" and problem.judge(option.recompute):
            yield _Shown(option.saved_bytes / max(1, option.duration_ns), -1, option)


def _rebuild(problem: Problem, taken: _Taken, option: RecomputeOption) -> None:
    """Take a recompute, if that helps and its inputs and results are still on the device."""
    step = problem.step
    if taken.away & {*option.inputs, *option.recompute.storages} or taken.needed & {*option.recompute.storages}:
        return
    rebuild = rebuild_of(step, option.recompute)
    begin, end = step.slots(rebuild.begin), step.slots(rebuild.end)
    # The check of a plan requires that a storage is idle for a while before it is rebuilt.
    if (rebuild.position > step.idle_from[rebuild.n]).all() and taken.helps(
        int(begin[0]), int(end[0]), option.saved_bytes
    ):
        taken.rebuilds.append(rebuild)
        taken.away.update(option.recompute.storages)
        taken.needed.update(option.inputs)


def idle_ns(problem: Problem, n: Ints) -> int:
    """Return the time that saves are idle."""
    step = problem.step
    return int((step.nominal_ns(step.first_read[n]) - step.nominal_ns(step.idle_from[n])).sum())


def free_ns(problem: Problem, n: Ints) -> Ints:
    """Return for each save the time that it is idle, less the time of its two copies."""
    step = problem.step
    if problem.tier is None:
        return np.zeros(len(n), np.int64)
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), step.size[n])
    return step.nominal_ns(step.first_read[n]) - step.nominal_ns(step.idle_from[n]) - out_ns - back_ns


def _with_feedback(problem: Problem, on_demand: Moves, share: float, rounds: int) -> Moves:
    """Start swaps back earlier that compute waited for, as long as the step becomes shorter."""
    if problem.tier is None:
        return on_demand
    _, back_ns = copy_ns(link_to(problem.machine, problem.tier), on_demand.size)
    lead_ns = back_ns.astype(np.float64)
    best = moves = _placed(problem, on_demand, lead_ns)
    done = moving(problem, moves)
    best_ns = done.step_ns
    for _ in range(rounds):
        late = sorted({stall.move for stall in done.stalls if not stall.for_write})
        if not late:
            break
        lead_ns[late] += share * back_ns[late]
        moves = _placed(problem, on_demand, lead_ns)
        done = moving(problem, moves)
        if done.step_ns < best_ns:
            best, best_ns = moves, done.step_ns
    return best


def _placed(problem: Problem, on_demand: Moves, lead_ns: npt.NDArray[np.float64]) -> Moves:
    """Place each swap back at the last tick that is its lead ahead of the read, or the first later one that fits."""
    step, n = problem.step, on_demand.n
    needed = need(step, on_demand)
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
    return moves_of(step, n, back, rebuilds=on_demand.rebuilds)
