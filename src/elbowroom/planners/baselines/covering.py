"""covering: which saves to swap so that every slot comes within the budget.

Computes: a set of saves. It repeatedly looks at the slot with the largest excess. Of the saves that are idle there, it
takes as many as it needs, in an order of preference. Then it drops saves that turned out unnecessary, the least
preferred first.
Reference: the greedy rule for covering integer programs (Dobson, "Worst-case analysis of greedy heuristics for integer
programming with nonnegative data", 1982), with an order of preference in place of its ratio.
Optimal: for no order in general. So swap_greedy tries several orders and weighs each by simulation.
Ignores: time, except for what the order of preference and the windows of `in_time` say about it.
Cost: one pass over the slots per round of taking, and over a save's window per save taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from elbowroom.planners.problem import Problem, moves_on_demand
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Flags, Ints
from elbowroom.step.routes import link_to


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Saves to choose from, ascending, with the slots at which each frees memory.

    Attributes:
        n: the saves.
        size: their bytes.
        begin: first slot from which each is away.
        end: one past the last slot at which it is away at most.
        usable: first slot at which its bytes have left without a wait; `begin` until `in_time` says otherwise.
    """

    n: Ints
    size: Ints
    begin: Ints
    end: Ints
    usable: Ints

    def without(self, saves: Ints) -> Candidates:
        """Return the candidates that are not among `saves`."""
        keep = ~np.isin(self.n, saves)
        fields = (self.n, self.size, self.begin, self.end, self.usable)
        n, size, begin, end, usable = (field[keep] for field in fields)
        return Candidates(n=n, size=size, begin=begin, end=end, usable=usable)


def candidates(problem: Problem, n: Ints) -> Candidates:
    """Return saves `n` as candidates, with their idle windows."""
    moves = moves_on_demand(problem.step, n)
    return Candidates(n=moves.n, size=moves.size, begin=moves.begin, end=moves.end, usable=moves.begin)


def in_time(problem: Problem, among: Candidates, chosen: Ints) -> Candidates:
    """Return the same saves, each usable from the tick at which its write has ended, queued behind a chosen set."""
    step = problem.step
    if problem.tier is None:
        return among
    out_ns, _ = copy_ns(link_to(problem.machine, problem.tier), among.size)
    saved_ns = step.nominal_ns(step.saved_at[among.n])
    free, ended = 0, list[int]()
    taken = np.isin(among.n, chosen).tolist()
    for saved, out, is_taken in zip(saved_ns.tolist(), out_ns.tolist(), taken, strict=True):
        ended.append(max(free, saved) + out)
        free = ended[-1] if is_taken else free
    tick = np.searchsorted(step.nominal_ns(step.ticks), np.array(ended, np.int64), side="left")
    ready = np.append(step.slots(step.points(step.ticks)), len(step.borders))[tick]
    return replace(among, usable=np.minimum(np.maximum(among.begin, ready), among.end))


def cover(problem: Problem, among: Candidates, order: Ints) -> Ints:
    """Choose saves that bring every slot within the budget, as far as the candidates can.

    Args:
        problem: the step and the budget.
        among: the candidates. Excess that can be covered in time is; the rest is covered with waits.
        order: indices into the candidates, most preferred first.
    """
    excess = problem.step.slot_peak - problem.budget_bytes
    taken = np.zeros(len(among.n), np.bool_)
    _take(excess, among.usable, among, order, taken)
    _take(excess, among.begin, among, order, taken)
    _drop(excess, among, order, taken)
    return among.n[taken]


def _relief(count: int, begin: Ints, end: Ints, size: Ints) -> Ints:
    """Return the bytes per slot that windows [begin, end) free."""
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, begin, size)
    np.subtract.at(change, np.maximum(begin, end), size)
    return np.cumsum(change[:-1])


def _take(excess: Ints, begin: Ints, among: Candidates, order: Ints, taken: Flags) -> None:
    """Mark candidates in `taken` until their windows from `begin` cover all the excess that any could cover."""
    count, first = len(excess), begin[order]
    last, size = among.end[order], among.size[order]
    left = np.minimum(excess, _relief(count, begin, among.end, among.size))
    left -= _relief(count, begin[taken], among.end[taken], among.size[taken])
    free = ~taken[order]
    while left.size and left[slot := int(left.argmax())] > 0:
        idle = np.nonzero(free & (first <= slot) & (slot < last))[0]
        chosen = idle[: int(np.searchsorted(np.cumsum(size[idle]), int(left[slot]))) + 1]
        free[chosen] = False
        left -= _relief(count, first[chosen], last[chosen], size[chosen])
        taken[order[chosen]] = True


def _drop(excess: Ints, among: Candidates, order: Ints, taken: Flags) -> None:
    """Unmark unnecessary candidates, least preferred first."""
    count = len(excess)
    over = excess - _relief(count, among.begin[taken], among.end[taken], among.size[taken])
    late = excess - _relief(count, among.usable[taken], among.end[taken], among.size[taken])
    for i in order[::-1].tolist():
        size, begin, usable, end = int(among.size[i]), among.begin[i], among.usable[i], among.end[i]
        if taken[i] and _fits(over[begin:end], size) and _fits(late[usable:end], size):
            taken[i] = False
            over[begin:end] += size
            late[usable:end] += size


def _fits(excess: Ints, size: int) -> bool:
    return not len(excess) or bool(excess.max() + size <= 0)
