"""refining: exchanges of single swaps, each played, for as long as they make the step faster.

Computes: a choice no slower than the one it is given. Where all choices of swaps and of ticks for them to start back
are few, it plays every one of them. Else it tries, for the swaps that compute waits for most, to do without them, to
take others instead, to add one, and to start one back at another tick; each improvement starts over.
Reference: local search (Papadimitriou and Steiglitz, "Combinatorial Optimization", 1982, chapter 19). Optimal: where
it plays every choice. Ignores: exchanges of more than two swaps at once. Cost: a play of n log n per trial; there are
about EFFORT / n of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, product

import numpy as np

from elbowroom.lifetimes import Ints, LastStep, listed
from elbowroom.moves import Moves, moves_of
from elbowroom.planners.covering import Candidates, candidates, cover
from elbowroom.planners.problem import Problem, peak_of
from elbowroom.planners.trying import Trial, arranged, fits, tried, waited_for, without

EVERY = 4000
"""So many choices are all played."""
EFFORT = 40_000
"""Saves times trials that are about worth it."""
MOST_TRIALS, FEWEST_TRIALS = 1000, 12
WORST = 8
"""How many of the swaps that compute waits for are exchanged."""


def refined(problem: Problem, n: Ints, best: Trial, bound_ns: int, enough_ns: int, share: int) -> Trial:
    """Improve on a trial.

    Args:
        problem: what was asked.
        n: the saves that may be swapped.
        best: where to begin.
        bound_ns: no choice takes less; where all choices are played, it stops there.
        enough_ns: else it stops at a step so fast.
        share: the effort is divided by it.
    """
    if _choice_count(problem.step, n) <= EVERY:
        return _best_of_all(problem, n, best, bound_ns)
    left = max(FEWEST_TRIALS, min(MOST_TRIALS, EFFORT // len(n)) // share)
    among = candidates(problem, n)
    while left > 0 and best.cost[0] > enough_ns:
        found = best
        for trial in islice(_neighbours(problem, among, best), left):
            left -= 1
            if trial.cost < found.cost:
                found = trial
                break
        if found is best:
            break
        best = found
    return best


def ticks_for(step: LastStep, n: int) -> Ints:
    """Positions at which a swap back of a save may start."""
    if not step.returns[n]:
        return np.array([step.end_op], np.int64)
    return step.ticks[(step.ticks > step.idle_from[n]) & (step.ticks <= step.first_read[n])]


def _choice_count(step: LastStep, n: Ints) -> int:
    count = 1
    for i in listed(n):
        count *= 1 + len(ticks_for(step, i))
        if count > EVERY:
            break
    return count


def _best_of_all(problem: Problem, n: Ints, best: Trial, bound_ns: int) -> Trial:
    """Play every choice that meets the budget."""
    step = problem.step
    for backs in product(*([-1, *listed(ticks_for(step, i))] for i in listed(n))):
        if best.cost[0] <= bound_ns:
            break
        back = np.array(backs, np.int64)
        moves = moves_of(step, n[back >= 0], back[back >= 0])
        if peak_of(step, moves) <= problem.budget_bytes:
            best = min(best, tried(problem, moves), key=lambda trial: trial.cost)
    return best


def _neighbours(problem: Problem, among: Candidates, best: Trial) -> Iterator[Trial]:
    """Trials that differ from one in a swap or two, those that look best first."""
    chosen, worst = best.moves.n, waited_for(best)[:WORST]
    sets = chain(
        (without(chosen, w) for w in worst),
        chain.from_iterable(_others(problem, among, chosen, w) for w in worst),
        (without(chosen, i) for i in listed(chosen)),
        (np.sort(np.append(chosen, i)) for i in listed(without(among.n, *listed(chosen)))),
        (np.sort(np.append(without(chosen, w), i)) for w in worst for i in listed(without(among.n, *listed(chosen)))),
    )
    seen: set[tuple[int, ...]] = {tuple(listed(chosen))}
    moved = (tried(problem, moves) for moves in _other_ticks(problem, best, worst))
    return chain((arranged(problem, n) for n in sets if _is_new(n, seen) and fits(problem, n)), moved)


def _is_new(n: Ints, seen: set[tuple[int, ...]]) -> bool:
    key = tuple(listed(n))
    known = key in seen
    seen.add(key)
    return not known


def _others(problem: Problem, among: Candidates, chosen: Ints, save: int) -> Iterator[Ints]:
    """Do without one save, keep the other swaps, and cover the rest by a few orders of preference."""
    step, rest = problem.step, among.without(np.array([save], np.int64))
    added = np.isin(rest.n, chosen, invert=True)
    idle_ns = step.nominal_ns(step.first_read[rest.n]) - step.nominal_ns(step.idle_from[rest.n])
    for order in (
        np.lexsort((rest.size, -idle_ns, added)),
        np.lexsort((rest.n, -rest.size, added)),
        np.lexsort((rest.n, rest.size, added)),
        np.lexsort((rest.n, -step.first_read[rest.n], added)),
    ):
        yield cover(problem, rest, order)


def _other_ticks(problem: Problem, best: Trial, worst: list[int]) -> Iterator[Moves]:
    """The same swaps, one of the worst started back at another tick."""
    step, moves = problem.step, best.moves
    for w in worst:
        i = int(np.searchsorted(moves.n, w))
        for tick in reversed(listed(ticks_for(step, w))):
            back = moves.back.copy()
            back[i] = tick
            changed = moves_of(step, moves.n, back)
            if tick != moves.back[i] and peak_of(step, changed) <= problem.budget_bytes:
                yield changed
