"""swap_greedy: the fastest of a few greedy choices of what to swap, each back at the latest tick that hides its copy.

Computes: a set of swaps that meets the budget, and when each comes back. Each of several orders of preference gives a
set (covering.py): first without regard to the link, then counting a save only once its write can have ended. placing.py
decides when each comes back. The simulator weighs every set, that of swap_all included. The fastest set wins; of equals
the one that moves fewer bytes. Then, as long as that helps, swaps that compute waited for are banned and replaced, and
single swaps exchanged.
Reference: Meng et al., "Training Deeper Models by GPU Memory Optimization on TensorFlow" (NIPS 2017 workshop): swap
what idles longest, trigger the swap back at the latest op that still hides the copy. Added here: a byte budget rather
than "everything", one serial lane per direction, and waits that keep the peak whatever the link does.
Optimal: if it finds a plan without stalls, up to bytes moved. Never slower, simulated, than swap_all.
Ignores: recomputing; all sets that its orders do not lead to.
Cost: one cover, placement and play per trial, a few dozen of them: about n (slots + n) in the number of saves n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners.baselines.covering import Candidates, candidates, cover, in_time
from elbowroom.planners.baselines.placing import place_backs
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, moving, peak_of, with_disk
from elbowroom.simulate.lanes import Play, copy_ns, moved_bytes
from elbowroom.step.last_step import Ints, listed
from elbowroom.step.moves import Moves
from elbowroom.step.routes import link_to

NAME = "swap_greedy"
MOST_TRIALS = 48
"""Most sets tried by order of preference, as many again with bans, and as many again with exchanges."""
EFFORT = 12_000
"""Limit on candidates times trials, for each of the same three."""
TRIALS_PER_BAN = 4
LEADS = (1.5, 2.0, 3.0)
"""Leads tried for swaps back, in durations of the copy, if they cost nothing."""
SLOWER = 2
"""Of plans with equal time and bytes, the one wins that is fastest on links slower by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GreedyTrial:
    """One choice of swaps, played.

    Attributes:
        moves: the swaps.
        done: their play.
        cost: (simulated step_ns, bytes moved); the least wins.
    """

    moves: Moves
    done: Play
    cost: tuple[int, int]


def swap_greedy(problem: Problem) -> Plan:
    """Swap what meets the budget at the least simulated time found.

    Raises:
        Infeasible: the step needs more than the budget with everything swapped and back on demand.
    """
    step = problem.step
    if step.level.max() <= problem.budget_bytes:
        return as_plan(problem, NAME)
    problem = with_disk(problem)
    n = movable(problem)
    if not _fits(problem, n):
        raise infeasible(problem, NAME, n)
    among = candidates(problem, n)
    trials = islice(_covers(problem, among), _effort(among))
    best = min([_try(problem, n), *trials], key=lambda trial: trial.cost)
    best = _exchanged(problem, among, _improve(problem, among, best))
    return as_plan(problem, NAME, _steadied(problem, best).moves)


def _fits(problem: Problem, n: Ints) -> bool:
    """Tell whether the budget is met with all of these swapped, and back on demand."""
    return peak_of(problem.step, moves_on_demand(problem.step, n)) <= problem.budget_bytes


def _effort(among: Candidates) -> int:
    """Return how many sets to try in one go, so that large problems do not take longer than small ones."""
    return min(MOST_TRIALS, 1 + EFFORT // max(1, len(among.n)))


def _try(problem: Problem, n: Ints, lead: float = 1.0) -> GreedyTrial:
    """Place the swaps back of saves `n` and play them."""
    moves = place_backs(problem, n, lead)
    done = moving(problem, moves)
    return GreedyTrial(moves=moves, done=done, cost=(done.step_ns, moved_bytes(moves, done)))


def _orders(problem: Problem, among: Candidates) -> Iterator[Ints]:
    """Yield orders of preference, as indices into the candidates."""
    step, n = problem.step, among.n
    if problem.tier is None:
        return
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), among.size)
    idle_ns = step.nominal_ns(step.first_read[n]) - step.nominal_ns(step.idle_from[n])
    yield np.lexsort((among.size, -idle_ns))  # idle longest
    yield np.lexsort((among.size, n))  # saved first: the lane is still free
    yield np.lexsort((n, -step.first_read[n]))  # read last
    yield np.lexsort((-idle_ns, -among.size))  # largest: fewest copies
    yield np.lexsort((n, -(idle_ns / (out_ns + back_ns))))  # copies hidden most times over


def _cover_trials(problem: Problem, among: Candidates, order: Ints) -> Iterator[GreedyTrial]:
    """Yield the cover by one order, and if writes come too late, covers that wait for fewer of them."""
    trial = _try(problem, cover(problem, among, order))
    yield trial
    for _ in range(2):
        if not any(stall.for_write for stall in trial.done.stalls):
            return
        n = cover(problem, in_time(problem, among, trial.moves.n), order)
        if np.array_equal(n, trial.moves.n):
            return
        trial = _try(problem, n)
        yield trial


def _covers(problem: Problem, among: Candidates) -> Iterator[GreedyTrial]:
    """Yield the trials of every order of preference."""
    return chain.from_iterable(_cover_trials(problem, among, order) for order in _orders(problem, among))


def _improve(problem: Problem, among: Candidates, best: GreedyTrial) -> GreedyTrial:
    """Ban swaps that compute waited for, and find others instead; stop when that no longer helps."""
    left = _effort(among)
    while left > 0:
        found = best
        for stalled in _stalled(best):
            rest = among.without(stalled)
            if left > 0 and _fits(problem, rest.n):
                trials = list(islice(_covers(problem, rest), min(left, TRIALS_PER_BAN)))
                left -= len(trials)
                found = min([found, *trials], key=lambda trial: trial.cost)
        if found is best:
            return best
        best = found
    return best


def _exchanged(problem: Problem, among: Candidates, best: GreedyTrial) -> GreedyTrial:
    """While compute waits, leave out one swap, keep the others and cover the rest by each order of preference."""
    left = _effort(among)
    while left > 0 and (worst := _by_stall(best)):
        found = best
        for n in worst:
            rest = among.without(np.array([n], np.int64))
            if left <= 0 or not _fits(problem, rest.n):
                continue
            others = np.isin(rest.n, best.moves.n, invert=True)
            orders = [order[np.argsort(others[order], kind="stable")] for order in islice(_orders(problem, rest), left)]
            sets = dict.fromkeys(tuple(listed(cover(problem, rest, order))) for order in orders)
            trials = [_try(problem, np.array(chosen, np.int64)) for chosen in sets]
            left -= len(trials)
            found = min([found, *trials], key=lambda trial: trial.cost)
        if found is best:
            return best
        best = found
    return best


def _by_stall(trial: GreedyTrial) -> list[int]:
    """Return the swapped saves that compute waited for, the longest wait first."""
    waited: dict[int, int] = {}
    for stall in trial.done.stalls:
        waited[stall.move] = waited.get(stall.move, 0) + stall.end_ns - stall.start_ns
    return [int(trial.moves.n[i]) for i in sorted(waited, key=lambda i: -waited[i])]


def _stalled(trial: GreedyTrial) -> Iterator[Ints]:
    """Yield sets of saves worth a ban: all that were waited for, those for room, those for data, the worst alone."""
    stalls = trial.done.stalls
    for kinds in ((True, False), (True,), (False,)):
        found = {stall.move for stall in stalls if stall.for_write in kinds}
        if found:
            yield trial.moves.n[sorted(found)]
    yield from (np.array([n], np.int64) for n in _by_stall(trial)[:1])


def _steadied(problem: Problem, best: GreedyTrial) -> GreedyTrial:
    """Return the same swaps, started further ahead if that costs nothing here and helps on slower links."""
    links = tuple(
        replace(
            link,
            out_bytes_per_s=max(1, link.out_bytes_per_s // SLOWER),
            back_bytes_per_s=max(1, link.back_bytes_per_s // SLOWER),
        )
        for link in problem.machine.links
    )
    slower: Machine = replace(problem.machine, links=links)
    trials = [best, *(_try(problem, best.moves.n, lead) for lead in LEADS)]
    return min(trials, key=lambda trial: (*trial.cost, moving(problem, trial.moves, slower).step_ns))
