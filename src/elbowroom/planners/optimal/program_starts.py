"""starting: choices that the pipe program makes, rounded, for annealing to begin with.

Computes: what to drop and what to swap. The relaxation of the program is solved for the budget and for a few smaller
ones, as it knows neither whole storages nor the bytes that recipes hold. It is solved with makers, which leave the
inputs of recipes open, and with recipes of single storages, which need theirs. What is above a threshold goes.
Reference: pipe.py, pipe_recomputes.py. Optimal: never by itself. Ignores: see above. Cost: a few linear programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from elbowroom.planners.optimal.closed_recipes import ANY_OPS
from elbowroom.planners.optimal.leaving import NOTHING, Leaving
from elbowroom.planners.optimal.pipe_bound import choice_of, makers_of
from elbowroom.planners.optimal.pipe_recomputes import options_on_offer
from elbowroom.planners.optimal.refine import Pool
from elbowroom.planners.optimal.solver import Reals
from elbowroom.planners.optimal.swaps_after_recomputes import needed_by
from elbowroom.step.last_step import listed

SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7, 0.65)
"""Shares of the budget that the program with makers is solved for."""
SHARES_OF_SINGLES = (1.0, 0.9)
"""The same for the program with single recipes."""
THRESHOLDS = (0.5, 0.2, 0.05)
"""What is dropped to at least this share is dropped."""
STAYING = ((20, None), (60, None), (200, None), (ANY_OPS, 0.0), (ANY_OPS, 0.5), (20, 0.0))
"""(most_ops, margin) of each choice."""
FEWER = 2
"""If few choices are enough, one of this number more is left out between two."""
COLUMNS = 1500
"""With more swaps and recomputes on offer, fewer programs are solved and fewer choices made of each."""


def choices_of_programs(pool: Pool, *, few: bool = False) -> Iterator[Leaving]:
    """Yield different choices for the budget of a pool, the first of which is to keep everything.

    Args:
        pool: swaps and recomputes to choose from.
        few: whether fewer choices are enough.
    """
    stride = 1 + (len(pool.n) + len(pool.recipes.droppable)) // COLUMNS + (FEWER if few else 0)
    seen = {NOTHING}
    yield NOTHING
    for dropped, swapped in _rounded(pool, stride):
        for most_ops, margin in STAYING[::stride] if dropped else STAYING[:1]:
            choice = Leaving(dropped, swapped, most_ops, margin)
            if choice not in seen:
                seen.add(choice)
                yield choice


def _rounded(pool: Pool, stride: int) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """Yield what is dropped and what is swapped."""
    if pool.recipes.droppable:
        yield from _with_singles(pool, SHARES_OF_SINGLES[::stride])
    yield from _with_makers(pool, SHARES[::stride])


def _with_makers(pool: Pool, shares: Sequence[float]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    problem, recipes, step = pool.problem, pool.recipes, pool.problem.step
    makers = makers_of(problem, may_drop=bool(recipes.droppable))
    stored = listed(step.storage_of(makers.n))
    for share in shares:
        budget_bytes = int(share * problem.budget_bytes)
        choice = choice_of(problem, pool.n, (), makers, budget_bytes)
        if not choice.found:
            return
        for threshold in THRESHOLDS:
            dropped = [s for s, part in zip(stored, choice.recomputed.tolist(), strict=True) if part > threshold]
            most = max(0.5, 1 - threshold)
            swapped = [n for n, part in zip(listed(pool.n), choice.swapped.tolist(), strict=True) if part >= most]
            yield frozenset(dropped).intersection(recipes.droppable), frozenset(swapped)


def _with_singles(pool: Pool, shares: Sequence[float]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    problem, recipes, step = pool.problem, pool.recipes, pool.problem.step
    singles = [recipes.single(storage) for storage in recipes.droppable]
    early, offered = needed_by(step, singles, pool.n), options_on_offer(step, singles)
    entries = np.append(pool.n, np.array([n for n, _ in early], np.int64))
    for share in shares:
        budget_bytes = int(share * problem.budget_bytes)
        choice = choice_of(problem, pool.n, early, offered, budget_bytes)
        if not choice.found:
            return
        weight: Reals = np.zeros(len(step.saves), np.float64)
        np.add.at(weight, entries, choice.swapped)
        dropped = [s for s, part in zip(recipes.droppable, choice.recomputed.tolist(), strict=True) if part > 0.5]
        yield frozenset(dropped), frozenset(np.nonzero(weight > 0.5)[0].tolist())
