"""searching: rough trials for one budget of allocated bytes after the other, for `optimal` to refine.

Computes: the baselines' plans, and the pipe program's choices, rounded to whole storages. The program runs without
recomputes and with those of each size of block, on a few steps (algorithms and states decided). The first budget gets
all of that; later ones only what served best for the first. Reference: optimal.py. Optimal: never by itself. Ignores:
what the simulator ignores.
Cost: a program and about six plays per kind of recomputes and step; all baselines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import final

import numpy as np

from elbowroom.errors import Infeasible
from elbowroom.planners.baselines.covering import candidates, cover
from elbowroom.planners.baselines.swap_all import swap_all
from elbowroom.planners.optimal.algorithm_choice import deciding_algorithms, fastest, frugal
from elbowroom.planners.optimal.baseline_trials import BASELINES, seeds, trial_of
from elbowroom.planners.optimal.pipe import Effort
from elbowroom.planners.optimal.pipe_bound import choice_of
from elbowroom.planners.optimal.pipe_recomputes import options_on_offer
from elbowroom.planners.optimal.refine import Pool
from elbowroom.planners.optimal.solver import Reals
from elbowroom.planners.optimal.state_choice import sets_of
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, agreeing, families, needed_by
from elbowroom.planners.optimal.trial import Trial, arranged, tried
from elbowroom.planners.problem import Planner, Problem, movable, moves_on_demand, without_disk
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import moves_of_plan
from elbowroom.step.recipes import RecomputeOption, options

NAME = "optimal"
GAP_SHARE = 1e-3
"""A plan is good enough if it exceeds the bound by at most this share of the keep-all step."""
TREE_COLUMNS, TREE_NODES = 60, 500
"""Up to TREE_COLUMNS swaps and recomputes get a tree of TREE_NODES nodes; for more, the relaxation is rounded."""
DIVE_SHARE = 0.2
"""Share of the open recomputes that are rounded at a time: a small share finds better ones, as a rule."""
MARGINS = (1.0, 0.0, 0.5)
"""Factors on the largest movable storage, which moves whole in the play: the program's budget is lowered by each."""
FEWEST_BLOCKS = 4
"""Blocks of recomputes of one size are tried if there are at least this many."""
MOST_RECIPES = 2000
"""Most recomputes on offer, those that save most bytes: a program with more takes minutes."""
MOST_WITH_STATES = 1000
"""With more saves than this, states move only if nothing else meets the budget, or in exchanges."""
MOST_OPTIONS = 500
"""Up to this number, all recomputes are tried together too."""
MOST_POOLS, MOST_BASELINES = 2, 3
"""Pools and baselines tried for later budgets: the fastest for the first budget."""

Found = tuple[Trial, Pool]


@final
class Search:
    """Search for trials of a problem; it narrows its choices once the first budget is done."""

    def __init__(self, problem: Problem) -> None:
        kept = (problem,) if int(problem.step.level.max()) <= problem.budget_bytes else ()
        ways = {way.algorithms: way for way in (fastest(problem), frugal(problem), *kept)}
        self._asked = problem
        self._pools = [pool_of(way) for way in ways.values()]
        self._away = list[Pool]()
        if len(self._pools[0].n) <= MOST_WITH_STATES:
            self._away = [pool_of(way) for way in sets_of(frugal(problem))]
        self._baselines = BASELINES
        self._is_first = True

    def __call__(self, budget_bytes: int) -> list[Found]:
        """Return the trials found within a number of allocated bytes, the fastest first."""
        less = replace(self._asked, budget_bytes=budget_bytes)
        found = self._all(less) if self._is_first else self._again(less)
        found.sort(key=lambda each: each[0].cost)
        return found

    def _all(self, less: Problem) -> list[Found]:
        """Make all trials, and note what served best."""
        pools = [pool.within(less.budget_bytes) for pool in self._pools]
        of_baselines = list(_of_baselines(less, pools, self._baselines))
        found = [found for _, found in of_baselines]
        found += [(trial, pool) for pool in pools for trial in _first_trials(pool)]
        away = [pool.within(less.budget_bytes) for pool in self._away]
        if found:
            used = set(min(found, key=_cost)[0].basis.recomputes)
            away = [pool.like(used) if used else pool for pool in away]
        found += [(trial, pool) for pool in away for trial in _first_trials(pool)]
        if found:
            self._narrow(found, [*pools, *away])
            of_baselines.sort(key=lambda each: _cost(each[1]))
            self._baselines = tuple(planner for planner, _ in of_baselines[:MOST_BASELINES])
        return found

    def _narrow(self, found: list[Found], pools: list[Pool]) -> None:
        """Keep the pools that served best, each with recomputes like its best."""
        best: dict[int, Found] = {}
        for each in sorted(found, key=_cost):
            best.setdefault(id(each[1]), each)
        some = [best[id(pool)] for pool in pools if id(pool) in best]
        some.sort(key=_cost)
        some = some[:MOST_POOLS]
        self._pools = [pool.like(used) if (used := trial.basis.recomputes) else pool for trial, pool in some]
        self._is_first = False

    def _again(self, less: Problem) -> list[Found]:
        pools = [pool.within(less.budget_bytes) for pool in self._pools]
        found = [found for _, found in _of_baselines(less, pools, self._baselines)]
        return found + [(trial, pool) for pool in pools for trial in _first_trials(pool)]


def _cost(found: Found) -> tuple[int, int]:
    return found[0].cost


def pool_of(problem: Problem) -> Pool:
    """Return the choices on offer, once algorithms are decided."""
    recipes = options(problem.step, max(1, problem.min_size_bytes)) if "recompute" in problem.allow else ()
    window_of = problem.step.window_of
    recipes = [o for o in recipes if problem.judge(o.recompute)]
    recipes = [o for o in recipes if all(_is_idle_before(problem.step, window_of[s], o) for s in o.recompute.storages)]
    recipes = tuple(sorted(recipes, key=lambda option: -option.saved_bytes)[:MOST_RECIPES])
    return Pool(problem=problem, n=movable(problem), options=recipes)


def _is_idle_before(step: LastStep, n: int, option: RecomputeOption) -> bool:
    """Tell whether a save is away for a time before a recipe rebuilds it; one that is read back at once is not."""
    return int(step.idle_from[n]) < option.recompute.before_op


def _of_baselines(problem: Problem, pools: list[Pool], baselines: Sequence[Planner]) -> Iterator[tuple[Planner, Found]]:
    """Yield the baselines' plans, each with the pool of its algorithms."""
    recorded = {pool.problem.algorithms: pool for pool in pools if pool.problem.states is None}
    for baseline, made in seeds(without_disk(problem), baselines):
        pool = recorded.get(made.algorithms) or pool_of(deciding_algorithms(problem, made.algorithms))
        recorded[made.algorithms] = pool
        found = trial_of(pool, made)
        if found is not None:
            yield baseline, found


def _first_trials(pool: Pool) -> Iterator[Trial]:
    """Yield the program's choices without recomputes and with them; to keep everything, if that fits."""
    problem, plain = pool.problem, pool.basis(())
    if int(problem.step.level.max()) <= problem.budget_bytes:
        yield tried(plain, moves_on_demand(problem.step, pool.n[:0]))
        return
    if plain.fits(pool.n) and (problem.states is not None or problem.algorithms):
        with suppress(Infeasible):  # all may fit only with the disk, which swap_all does not know
            yield tried(plain, moves_of_plan(problem.step, swap_all(replace(problem, states=None))))
    for margin in MARGINS[:2]:
        yield from _of_program(pool, (), margin)
    if pool.options:
        yield from _with_recomputes(pool)


def _with_recomputes(pool: Pool) -> Iterator[Trial]:
    """Yield the program's choices from recomputes of each size, and from all; other margins take the best of these."""
    sets = [family for family in families(pool.options) if _block_count(family) >= FEWEST_BLOCKS]
    if (len(pool.options) <= MOST_OPTIONS and len(sets) > 1) or not sets:
        sets.append(pool.options)
    found = [(recipes, list(_of_program(pool, recipes, MARGINS[0]))) for recipes in dict.fromkeys(sets)]
    yield from chain.from_iterable(trials for _, trials in found)
    ranked = sorted((min(trial.cost for trial in trials), k) for k, (_, trials) in enumerate(found) if trials)
    again = found[ranked[0][1]][0] if ranked else pool.options
    for margin in MARGINS[1:]:
        yield from _of_program(pool, again, margin)


def _block_count(recipes: tuple[RecomputeOption, ...]) -> int:
    return sum(option.kind == "block" for option in recipes)


def _of_program(pool: Pool, recipes: tuple[RecomputeOption, ...], margin: float) -> Iterator[Trial]:
    """Yield the program's choice for the budget less a margin, rounded to whole storages."""
    problem, n = pool.problem, pool.n
    budget_bytes = problem.budget_bytes - int(margin * int(problem.step.size[n].max(initial=0)))
    early = needed_by(problem.step, recipes, n)
    offered = options_on_offer(problem.step, recipes)
    choice = choice_of(problem, n, early, offered, budget_bytes, _effort(problem, len(n) + len(early) + len(recipes)))
    if choice.found:
        preferred = listed(np.argsort(-choice.recomputed, kind="stable").astype(np.int64))
        basis = pool.basis(agreeing([recipes[r] for r in preferred if choice.recomputed[r] > 0.5]))
        weight: Reals = np.zeros(len(problem.step.saves), np.float64)
        np.add.at(weight, np.append(n, np.array([i for i, _ in early], np.int64)), choice.swapped)
        yield from (arranged(basis, each) for each in _whole(basis, weight) if basis.fits(each))


def _effort(problem: Problem, columns: int) -> Effort:
    """Return how to solve a program with `columns` swaps and recomputes."""
    seconds = problem.time_limit_s / 4
    if columns > TREE_COLUMNS:
        return Effort(kind="dive", seconds=seconds, share=DIVE_SHARE)
    return Effort(kind="tree", seconds=seconds, gap_ns=GAP_SHARE * float(problem.step.at_ns[-1]), nodes=TREE_NODES)


def _whole(basis: Basis, weight: Reals) -> Iterator[Ints]:
    """Yield sets of swaps from the share of each to swap: those with more than half, and just enough of the largest."""
    most = basis.n[weight[basis.n] > 0.5]
    yield most
    among = candidates(basis.problem, basis.n)
    enough = cover(basis.problem, among, np.lexsort((among.n, -weight[among.n])))
    if not np.array_equal(most, enough):
        yield enough
