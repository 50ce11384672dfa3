"""refining: exchanges of single swaps and recomputes, each played, for as long as they make the step faster.

Computes: a choice no slower than the given one. If there are few choices of recomputes, swaps and ticks of return, it
plays every one of them. If not, it looks at the swaps that compute waits for most. It tries to leave them out, to take
others instead, to recompute what they move, to add one, and to start one back at another tick. It also tries to leave
out each recompute. Every improvement starts over.
Reference: local search (Papadimitriou and Steiglitz, "Combinatorial Optimization", 1982, chapter 19). Optimal: if it
plays every choice. Ignores: exchanges of more than two things at once. Cost: a play of n log n per trial; there are
about EFFORT / n of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations, product

import numpy as np

from elbowroom.planners.baselines.covering import candidates, cover
from elbowroom.planners.optimal.closed_recipes import ANY_OPS, ClosedRecipes
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, agreeing, basis_of
from elbowroom.planners.optimal.trial import Trial, arranged, tried, waited_for, without
from elbowroom.planners.problem import Problem
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import need
from elbowroom.step.recipes import RecomputeOption

ALL_PLAYED = 4000
"""Up to about this number of choices, all are played."""
EFFORT = 40_000
"""Limit on saves times trials."""
MOST_TRIALS, FEWEST_TRIALS = 1000, 12
ASKING = 3
"""Extra cost, in trials, of asking whether a trial is accepted."""
WORST = 8
"""Number of swaps that are exchanged: those that compute waits for most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Choices on offer.

    Attributes:
        problem: what is planned.
        n: saves that may be swapped.
        recipes: recomputes of whatever may be dropped.
        options: recomputes to choose from one by one, if there are few; else empty.
    """

    problem: Problem
    n: Ints
    recipes: ClosedRecipes
    options: tuple[RecomputeOption, ...] = ()

    def basis(self, options: Sequence[RecomputeOption]) -> Basis:
        """Return the basis of some of the recomputes."""
        return basis_of(self.problem, self.n, options)

    def within(self, budget_bytes: int) -> Pool:
        """Return the same pool for another budget."""
        return replace(self, problem=replace(self.problem, budget_bytes=budget_bytes))


Accept = Callable[[Trial], bool]
"""Tells whether a trial is allowed, beyond its allocated bytes; asked only for trials that are faster."""


def refined(pool: Pool, best: Trial, bound_ns: int, enough_ns: int, share: int, accept: Accept | None) -> Trial:
    """Improve on a trial.

    Args:
        pool: the choices on offer.
        best: the trial to begin with.
        bound_ns: lower bound of the step time; if all choices are played, it stops there.
        enough_ns: if not, it stops at a step this fast.
        share: the effort is divided by it.
        accept: what else a trial must meet; None for nothing.
    """
    if choice_count(pool) <= ALL_PLAYED:
        return best_of_all(pool, best, bound_ns, accept)
    return exchanged(partial(neighbours, pool), best, enough_ns, trial_count(pool, share), accept)


def trial_count(pool: Pool, share: int) -> int:
    """Return how many trials to make."""
    return max(FEWEST_TRIALS, min(MOST_TRIALS, EFFORT // max(1, len(pool.n))) // share)


def exchanged(
    near: Callable[[Trial], Iterator[Trial]], best: Trial, enough_ns: int, left: int, accept: Accept | None
) -> Trial:
    """Go from trial to trial for as long as that makes the step faster.

    Args:
        near: yields trials that differ in one thing, those that look best first.
        best: the trial to begin with.
        enough_ns: it stops at a step this fast.
        left: number of trials that may be played; asking about one counts as several.
        accept: what else a trial must meet; None for nothing.
    """
    found: Trial | None = best
    while found is not None and left > 0 and found.cost[0] > enough_ns:
        best, found = found, None
        for trial in near(best):
            left -= 1
            if trial.cost < best.cost:
                left -= ASKING if accept else 0
                if not accept or accept(trial):
                    found = trial
                    break
            if left <= 0:
                break
    return found or best


def ticks_for(step: LastStep, n: int) -> Ints:
    """Return the positions at which a swap back of a save may start."""
    if not step.returns[n]:
        return np.array([step.end_op], np.int64)
    return step.ticks[(step.ticks > step.idle_from[n]) & (step.ticks <= step.first_read[n])]


def choice_count(pool: Pool) -> int:
    """Return an upper bound on the number of choices, counted to a little above ALL_PLAYED."""
    droppable = len(pool.recipes.droppable)
    count = 2 ** min(max(len(pool.options), droppable), 20) * max(1, droppable)
    for i in listed(pool.n):
        count *= 1 + len(ticks_for(pool.problem.step, i))
        if count > ALL_PLAYED:
            break
    return count


def best_of_all(pool: Pool, best: Trial, bound_ns: int, accept: Accept | None) -> Trial:
    """Play every choice that meets the budgets. Returns the fastest, or the given trial if it is as fast."""
    sets = chain.from_iterable(combinations(pool.options, k) for k in range(len(pool.options) + 1))
    alone = (options for options in sets if len(agreeing(options)) == len(options))
    for options in dict.fromkeys([*alone, *pool.recipes.every()]):
        for trial in _every(pool.basis(options), best, bound_ns):
            best = trial if trial.cost < best.cost and (not accept or accept(trial)) else best
    return best


def _every(basis: Basis, best: Trial, bound_ns: int) -> Iterator[Trial]:
    """Yield trials of all swaps that meet the budgets together with some recomputes."""
    if best.cost[0] <= bound_ns:
        return
    for backs in product(*([-1, *listed(ticks_for(basis.problem.step, i))] for i in listed(basis.n))):
        back = np.array(backs, np.int64)
        moves = basis.moves(basis.n[back >= 0], back[back >= 0])
        if int(need(basis.asked.step, moves).max()) <= basis.problem.budget_bytes and basis.fits(moves.n):
            yield tried(basis, moves)


def neighbours(pool: Pool, best: Trial) -> Iterator[Trial]:
    """Yield trials that differ from one in a thing or two, those that look best first."""
    basis, chosen, worst = best.basis, best.moves.n, waited_for(best)[:WORST]
    rest = without(basis.n, *listed(chosen))
    sets = chain(
        (without(chosen, w) for w in worst),
        chain.from_iterable(_others(basis, chosen, w) for w in worst),
        (without(chosen, i) for i in listed(chosen)),
        (np.sort(np.append(chosen, i)) for i in listed(rest)),
        (np.sort(np.append(without(chosen, w), i)) for w in worst for i in listed(rest)),
    )
    seen: set[tuple[int, ...]] = {tuple(listed(chosen))}
    swaps = (arranged(basis, n) for n in sets if _is_new(n, seen) and basis.fits(n))
    return in_turn(swaps, _fewer_recomputes(pool, best), _other_ticks(best, worst))


def in_turn(*kinds: Iterator[Trial]) -> Iterator[Trial]:
    """Yield trials of each kind in turn."""
    left = list(kinds)
    while left:
        for kind in tuple(left):
            trial = next(kind, None)
            if trial is None:
                left.remove(kind)
            else:
                yield trial


def _is_new(n: Ints, seen: set[tuple[int, ...]]) -> bool:
    key = tuple(listed(n))
    known = key in seen
    seen.add(key)
    return not known


def _others(basis: Basis, chosen: Ints, save: int) -> Iterator[Ints]:
    """Yield sets of swaps without one save: keep the other swaps, and cover the rest by a few orders of preference."""
    step, rest = basis.problem.step, candidates(basis.problem, without(basis.n, save))
    added = np.isin(rest.n, chosen, invert=True)
    idle_ns = step.nominal_ns(step.first_read[rest.n]) - step.nominal_ns(step.idle_from[rest.n])
    for order in (
        np.lexsort((rest.size, -idle_ns, added)),
        np.lexsort((rest.n, -rest.size, added)),
        np.lexsort((rest.n, rest.size, added)),
        np.lexsort((rest.n, -step.first_read[rest.n], added)),
    ):
        yield cover(basis.problem, rest, order)


def _fewer_recomputes(pool: Pool, best: Trial) -> Iterator[Trial]:
    """Yield trials with one storage less that is dropped, those that take longest first; the swaps follow."""
    chosen = sorted(best.basis.options, key=lambda option: -option.duration_ns)
    dropped = {storage for option in chosen for storage in option.recompute.storages}
    for storage in (storage for option in chosen for storage in option.recompute.storages):
        recipes = pool.recipes.of(dropped - {storage}, ANY_OPS, None)
        trial = covered(pool.basis([recipe.option for recipe in recipes]), best.moves.n)
        if trial is not None:
            yield trial


def covered(basis: Basis, preferred: Ints) -> Trial | None:
    """Return a trial whose swaps bring a basis within the budget, preferred saves first; None if no swaps do."""
    among = candidates(basis.problem, basis.n)
    n = cover(basis.problem, among, np.lexsort((among.n, np.isin(among.n, preferred, invert=True))))
    return arranged(basis, n) if basis.fits(n) else None


def _other_ticks(best: Trial, worst: list[int]) -> Iterator[Trial]:
    """Yield the same swaps, with one of the worst started back at another tick."""
    basis, moves = best.basis, best.moves
    step = basis.problem.step
    for w in worst:
        i = int(np.searchsorted(moves.n, w))
        for tick in reversed(listed(ticks_for(step, w))):
            back = moves.back.copy()
            back[i] = tick
            changed = basis.moves(moves.n, back)
            if tick != moves.back[i] and int(need(basis.asked.step, changed).max()) <= basis.problem.budget_bytes:
                yield tried(basis, changed)
