"""optimal: the fastest plan found, and a proof of how much faster any other could be.

Computes: what to keep, what to swap, what to recompute, and the algorithm of each op (choosing.py). The pipe program
(flow.py) says which storages should go if links moved bytes as pipes move water, and bounds what any plan can reach;
its choice is made whole, arranged and played, for a few margins of the budget, beside the other planners' plans; the
fastest is then improved by exchanges, each of them played (refining.py), until the bound is met or the effort is spent.
Reference: flow.py names it; improving by exchanges is local search (Papadimitriou and Steiglitz, "Combinatorial
Optimization", 1982, chapter 19). Optimal: where it meets the bound; and where there are few options, as then all of
them are played (every_plan.py). Never slower, simulated, than any baseline that meets the same budget (seeds.py).
Ignores: what the simulator ignores. Cost: the program's, then plays of n log n each, fewer of them the larger n is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil
from typing import final

import numpy as np

from elbowroom.errors import Infeasible
from elbowroom.lanes import copy_ns, link_to
from elbowroom.lifetimes import Ints, LastStep, listed
from elbowroom.moves import moves_of_plan
from elbowroom.plan import Bound, Plan
from elbowroom.planners.basis import Basis, agreeing, families, needed_by
from elbowroom.planners.choosing import (
    choices_near,
    deciding_algorithms,
    every,
    every_count,
    fastest,
    frugal,
    optimistic,
    smallest,
)
from elbowroom.planners.confirming import ROUNDS, replayed, within_reserved
from elbowroom.planners.covering import candidates, cover
from elbowroom.planners.every_plan import are_few, fastest_of_all, least_of_all
from elbowroom.planners.flow import NOTHING_SAVED, Choice, Effort, Offer, Pipe, choose, marks_of, swaps_on_offer
from elbowroom.planners.flow_recomputes import Recomputes, makers_on_offer, options_on_offer
from elbowroom.planners.infeasible import infeasible
from elbowroom.planners.milp import Reals
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of, with_disk, without_disk
from elbowroom.planners.refining import EVERY, Pool, best_of_all, choice_count, exchanged, refined, trial_count
from elbowroom.planners.seeds import seeds, trial_of
from elbowroom.planners.states import all_away, for_free, sets_of, states_near
from elbowroom.planners.swap_all import swap_all
from elbowroom.planners.swap_greedy import swap_greedy
from elbowroom.planners.trying import Trial, arranged, tried
from elbowroom.recipes import Option, options

NAME = "optimal"
GAP_SHARE = 1e-3
"""A plan that takes at most this share of the keep-all step longer than the bound is good enough."""
MOST_MARKS = 250
"""Marks of each kind in the program; more of them cost time and hardly raise the bound (see docs/planning.md)."""
TREE_COLUMNS, TREE_NODES = 60, 500
"""So few swaps and recomputes are searched with a tree of so many nodes; of more, the relaxation is rounded."""
DIVE_SHARE = 0.1
"""How many of the recomputes still open are rounded at a time: few at a time finds better ones, as a rule."""
TOLERANCE = 1e-6
"""The solver's, as a share of the step: a bound is lowered by it before it is rounded up to whole ns."""
MARGINS = (1.0, 0.0, 0.5)
"""The budget of the program, less so many times the largest storage that may move, which moves whole in the play."""
FEWEST_BLOCKS = 4
"""Blocks of recomputes of one size are tried where there are so many of them."""
MOST_RECIPES = 2000
"""So many recomputes are looked at, those that save most bytes: a program with more takes minutes."""
MOST_BESIDE_STATES = 1000
"""Beside more saves, states are moved only where nothing else meets the budget, or in exchanges."""
MOST_OPTIONS = 500
"""So few recomputes are tried all together too."""


def optimal(problem: Problem) -> Plan:
    """Meet the budget at the least simulated time found.

    Raises:
        Infeasible: no plan that was found meets the budget.
    """
    caching, problem = problem.machine.allocator != "exact", with_disk(problem)
    ideal = for_free(optimistic(problem))
    if problem.host_bytes is not None:  # no program knows which of two tiers a storage takes, so that any may go
        ideal = replace(ideal, tier_bytes=2**62)
    ideal_ns = int(ideal.step.at_ns[-1])
    for way in (problem, fastest(problem)):
        kept, step = as_plan(way, NAME), way.step
        fits = int(step.level.max()) <= problem.budget_bytes and int(step.at_ns[-1]) == ideal_ns
        if fits and (not caching or _is_free(problem, kept)):
            return _bounded(problem, kept, ideal_ns, ideal_ns)
    search = _Search(problem, ideal_ns + _bound_ns(ideal, movable(ideal)), ROUNDS if caching else 1)
    if caching:
        least = all_away(smallest(problem))
        least_bytes = peak_of(least.step, moves_on_demand(least.step, movable(least)))
        return within_reserved(problem, NAME, least_bytes, search)
    return _of_every(problem, search) if are_few(problem) else search(problem)[0]


def _of_every(problem: Problem, search: _Search) -> Plan:
    """The fastest of all plans of a small step, and where there is none the least budget that has one."""
    try:
        made = search(problem)[0]
    except Infeasible as found:
        least, moves = least_of_all(problem)
        if peak_of(least.step, moves) >= found.least_feasible_bytes:
            raise
        if peak_of(least.step, moves) > problem.budget_bytes:
            raise infeasible(least, NAME, moves.n, moves) from None
        made = None
    bound_ns = search.bound_ns
    if made is not None and made.bound is not None and made.bound.step_ns <= bound_ns:
        return made
    best, step_ns = fastest_of_all(problem, made)
    return _bounded(problem, replace(best, planner=NAME), step_ns, bound_ns)


@final
class _Search:
    """Plans for one budget of allocated bytes after the other: all but the first from recomputes like the first's."""

    def __init__(self, problem: Problem, bound_ns: int, share: int) -> None:
        kept = (problem,) if int(problem.step.level.max()) <= problem.budget_bytes else ()
        ways = {way.algorithms: way for way in (fastest(problem), frugal(problem), *kept)}
        self._asked = problem
        self._pools = [_pool(way) for way in ways.values()]
        if len(self._pools[0].n) <= MOST_BESIDE_STATES:
            self._pools += [_pool(way) for way in sets_of(frugal(problem))]
        self.bound_ns = bound_ns
        self._share = share
        self._is_first = True

    def __call__(self, less: Problem) -> list[Plan]:
        """Plans for the budget of `less`, the fastest first."""
        pools = [pool.within(less.budget_bytes) for pool in self._pools]
        trials = self._trials(less, pools)
        plans = [_bounded(self._asked, trial.plan(NAME), trial.cost[0], self.bound_ns) for trial in trials]
        if self._share > 1 and self._is_first and plans[0].recomputes:
            used = set(plans[0].recomputes)
            self._pools = [pool.like(used) for pool in self._pools]
            self._is_first = False
        return plans

    def _trials(self, less: Problem, pools: list[Pool]) -> list[Trial]:
        """The best found, and those that it came from, the fastest first."""
        found = [*_of_baselines(less, pools), *((trial, pool) for pool in pools for trial in _first_trials(pool))]
        found = found or [_least([*pools, _pool(all_away(smallest(less)))])]
        found.sort(key=lambda each: each[0].cost)
        best, pool = found[0]
        enough_ns = self.bound_ns + int(GAP_SHARE * self._asked.step.at_ns[-1])
        best, left = refined(pool, best, self.bound_ns, enough_ns, self._share), trial_count(pool, self._share)
        if 1 < every_count(less) * choice_count(pool) <= EVERY:
            for way in every(less):
                best = best_of_all(_pool(way), best, self.bound_ns)
        best = exchanged(partial(choices_near, less, pool), best, enough_ns, left)
        if "state" in less.allow:
            undecided = deciding_algorithms(less, best.basis.asked.algorithms)
            best = exchanged(partial(states_near, undecided, pool), best, enough_ns, left)
        return [best, *(trial for trial, _ in found)]


def _pool(problem: Problem) -> Pool:
    """What there is to choose from, once algorithms are chosen."""
    recipes = options(problem.step, max(1, problem.min_size_bytes)) if "recompute" in problem.allow else ()
    window_of = problem.step.window_of
    recipes = [o for o in recipes if problem.judge(o.recompute)]
    recipes = [o for o in recipes if all(_is_idle_before(problem.step, window_of[s], o) for s in o.recompute.storages)]
    recipes = tuple(sorted(recipes, key=lambda option: -option.saved_bytes)[:MOST_RECIPES])
    return Pool(problem=problem, n=movable(problem), options=recipes)


def _is_idle_before(step: LastStep, n: int, option: Option) -> bool:
    """Whether a save is away for a time when a recipe rebuilds it; one that is read back at once is not."""
    return int(step.idle_from[n]) < option.recompute.before_op


def _of_baselines(problem: Problem, pools: list[Pool]) -> Iterator[tuple[Trial, Pool]]:
    """The baselines' plans, each with the pool of its algorithms."""
    recorded = {pool.problem.algorithms: pool for pool in pools if pool.problem.states is None}
    for made in seeds(without_disk(problem)):
        pool = recorded.get(made.algorithms) or _pool(deciding_algorithms(problem, made.algorithms))
        recorded[made.algorithms] = pool
        trial = trial_of(pool, made)
        if trial is not None:
            yield trial, pool


def _is_free(problem: Problem, made: Plan) -> bool:
    """Whether the allocator has room for a plan without turning to the driver."""
    found = replayed(problem.step.trace, problem.machine, made, problem.budget_bytes)
    return found.fits and not found.is_driven


def _least(pools: list[Pool]) -> tuple[Trial, Pool]:
    """Swap all that may be, beside all recomputes of one kind or none: what needs the fewest bytes, whatever it costs.

    Raises:
        Infeasible: even that is above the budget.
    """
    bases = [(pool.basis(agreeing(recipes)), pool) for pool in pools for recipes in ((), *families(pool.options))]
    least, pool = min(bases, key=lambda each: peak_of(each[0].asked.step, each[0].on_demand(each[0].n)))
    if not least.fits(least.n):
        raise infeasible(pool.problem, NAME, pool.n, least.on_demand(least.n) if least.options else None)
    return arranged(least, least.n), pool


def _bounded(problem: Problem, made: Plan, step_ns: int, bound_ns: int) -> Plan:
    bound = Bound(machine=problem.machine.name, step_ns=step_ns, lower_bound_ns=min(step_ns, bound_ns))
    return replace(made, bound=bound, budget_bytes=problem.budget_bytes)


def _bound_ns(problem: Problem, n: Ints) -> int:
    """What every plan takes longer than the ops at least, in whole ns: see Note: [Why the pipe is a lower bound]."""
    recomputes = "recompute" in problem.allow
    makers = makers_on_offer(problem.step, problem.min_size_bytes if recomputes else 2**63 - 1)
    effort = Effort(kind="bound", seconds=problem.time_limit_s)
    least_ns = _choice(problem, n, (), makers, problem.budget_bytes, effort).bound_ns
    return max(0, ceil(least_ns - TOLERANCE * float(problem.step.at_ns[-1])))


def _choice(
    problem: Problem,
    n: Ints,
    early: list[tuple[int, int]] | tuple[()],
    recomputes: Recomputes,
    budget_bytes: int,
    effort: Effort,
) -> Choice:
    """What the pipe program makes of a budget."""
    step, swaps = problem.step, swaps_on_offer(problem.step, n, early)
    if not len(step.ticks):
        return NOTHING_SAVED
    offer = Offer(
        step=step,
        swaps=swaps,
        recomputes=recomputes,
        marks=marks_of(step, swaps, budget_bytes, MOST_MARKS, recomputes),
        pipe=_pipe(problem, n),
        budget_bytes=budget_bytes,
    )
    return choose(offer, effort)


def _pipe(problem: Problem, n: Ints) -> Pipe:
    """The rates that no copy of these saves exceeds."""
    if problem.tier is None or not len(n):
        return Pipe(out=1.0, back=1.0)
    size = problem.step.size[n]
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), size)
    return Pipe(out=float((size / np.maximum(1, out_ns)).max()), back=float((size / np.maximum(1, back_ns)).max()))


def _first_trials(pool: Pool) -> Iterator[Trial]:
    """The other planners' plans, and the program's choices, without recomputes and with them; or to keep everything."""
    problem, plain = pool.problem, pool.basis(())
    if int(problem.step.level.max()) <= problem.budget_bytes:
        yield tried(plain, moves_on_demand(problem.step, pool.n[:0]))
        return
    if plain.fits(pool.n) and (problem.states is not None or problem.algorithms):
        for planner in (swap_greedy, swap_all):
            with suppress(Infeasible):  # all fit where some go on to the disk, of which these know nothing
                yield tried(plain, moves_of_plan(problem.step, planner(replace(problem, states=None))))
    for margin in MARGINS[:2]:
        yield from _of_program(pool, (), margin)
    if pool.options:
        yield from _with_recomputes(pool)


def _with_recomputes(pool: Pool) -> Iterator[Trial]:
    """The program's choices from recomputes of each size; from those of the best size for other margins; from all."""
    sets = [family for family in families(pool.options) if _block_count(family) >= FEWEST_BLOCKS]
    if len(pool.options) <= MOST_OPTIONS or not sets:
        sets.append(pool.options)
    found = [(recipes, list(_of_program(pool, recipes, MARGINS[0]))) for recipes in dict.fromkeys(sets)]
    yield from chain.from_iterable(trials for _, trials in found)
    ranked = sorted((min(trial.cost for trial in trials), k) for k, (_, trials) in enumerate(found) if trials)
    again = found[ranked[0][1]][0] if ranked else pool.options
    for margin in MARGINS[1:]:
        yield from _of_program(pool, again, margin)


def _block_count(recipes: tuple[Option, ...]) -> int:
    return sum(option.kind == "block" for option in recipes)


def _of_program(pool: Pool, recipes: tuple[Option, ...], margin: float) -> Iterator[Trial]:
    """The program's choice for the budget less a margin, made whole."""
    problem, n = pool.problem, pool.n
    budget_bytes = problem.budget_bytes - int(margin * int(problem.step.size[n].max(initial=0)))
    early = needed_by(problem.step, recipes, n)
    offered = options_on_offer(problem.step, recipes)
    choice = _choice(problem, n, early, offered, budget_bytes, _effort(problem, len(n) + len(early) + len(recipes)))
    if choice.found:
        preferred = listed(np.argsort(-choice.recomputed, kind="stable").astype(np.int64))
        basis = pool.basis(agreeing([recipes[r] for r in preferred if choice.recomputed[r] > 0.5]))
        weight: Reals = np.zeros(len(problem.step.saves), np.float64)
        np.add.at(weight, np.append(n, np.array([i for i, _ in early], np.int64)), choice.swapped)
        yield from (arranged(basis, each) for each in _whole(basis, weight) if basis.fits(each))


def _effort(problem: Problem, columns: int) -> Effort:
    """How to solve a program of so many swaps and recomputes."""
    seconds = problem.time_limit_s / 4
    if columns > TREE_COLUMNS:
        return Effort(kind="dive", seconds=seconds, share=DIVE_SHARE)
    return Effort(kind="tree", seconds=seconds, gap_ns=GAP_SHARE * float(problem.step.at_ns[-1]), nodes=TREE_NODES)


def _whole(basis: Basis, weight: Reals) -> Iterator[Ints]:
    """Sets of swaps from how much of each should be swapped: those of which most should, and just enough of them."""
    most = basis.n[weight[basis.n] > 0.5]
    yield most
    among = candidates(basis.problem, basis.n)
    enough = cover(basis.problem, among, np.lexsort((among.n, -weight[among.n])))
    if not np.array_equal(most, enough):
        yield enough
