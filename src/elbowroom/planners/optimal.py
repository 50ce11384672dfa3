"""optimal: the fastest plan found, and a proof of how much faster any other could be.

Computes: what to keep, what to swap and what to recompute. The pipe program (flow.py) says which storages should go if
links moved bytes as pipes move water, and bounds what any plan can reach; its choice is made whole, arranged and
played, for a few margins of the budget, beside the other planners' plans; the fastest is then improved by exchanges,
each of them played (refining.py), until the bound is met or the effort is spent.
Reference: flow.py names it; improving by exchanges is local search (Papadimitriou and Steiglitz, "Combinatorial
Optimization", 1982, chapter 19). Optimal: where it meets the bound; and where there are few options, as then all of
them are played. Never slower, simulated, than swap_greedy, swap_all and keep_all.
Ignores: what the simulator ignores. Cost: the program's, then plays of n log n each, fewer of them the larger n is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import ceil
from typing import final

import numpy as np

from elbowroom.lanes import copy_ns, link_to
from elbowroom.lifetimes import Ints, listed
from elbowroom.moves import moves_of_plan
from elbowroom.plan import Bound, Plan
from elbowroom.planners.basis import Basis, agreeing, families, needed_by
from elbowroom.planners.confirming import ROUNDS, within_reserved
from elbowroom.planners.covering import candidates, cover
from elbowroom.planners.flow import Choice, Effort, Offer, Pipe, choose, marks_of, swaps_on_offer
from elbowroom.planners.flow_recomputes import Recomputes, makers_on_offer, options_on_offer
from elbowroom.planners.infeasible import infeasible
from elbowroom.planners.milp import Reals
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of
from elbowroom.planners.refining import Pool, refined
from elbowroom.planners.swap_all import swap_all
from elbowroom.planners.swap_greedy import swap_greedy
from elbowroom.planners.trying import Trial, arranged, tried
from elbowroom.recipes import Option, options
from elbowroom.simulate import simulate

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
MOST_OPTIONS = 500
"""So few recomputes are tried all together too."""


def optimal(problem: Problem) -> Plan:
    """Meet the budget at the least simulated time found.

    Raises:
        Infeasible: no plan that was found meets the budget.
    """
    step, kept = problem.step, as_plan(problem, NAME)
    caching = problem.machine.allocator != "exact"
    if step.level.max() <= problem.budget_bytes and (not caching or _reserved(problem, kept) <= problem.budget_bytes):
        return _bounded(problem, kept, int(step.at_ns[-1]), int(step.at_ns[-1]))
    n = movable(problem)
    recipes = options(step, max(1, problem.min_size_bytes)) if "recompute" in problem.allow else ()
    recipes = tuple(sorted(recipes, key=lambda option: -option.saved_bytes)[:MOST_RECIPES])
    bound_ns = int(step.at_ns[-1]) + _bound_ns(problem, n)
    pool = Pool(problem=problem, n=n, options=recipes)
    if caching:
        return within_reserved(problem, NAME, peak_of(step, moves_on_demand(step, n)), _Tightening(pool, bound_ns))
    return _plans(problem, pool, bound_ns, 1)[0]


@final
class _Tightening:
    """Plans for one budget of allocated bytes after the other: all but the first from recomputes like the first's."""

    def __init__(self, pool: Pool, bound_ns: int) -> None:
        self._pool = pool
        self._bound_ns = bound_ns
        self._is_first = True

    def __call__(self, less: Problem) -> list[Plan]:
        """Plans for the budget of `less`, the fastest first."""
        asked = self._pool.problem
        plans = _plans(asked, replace(self._pool, problem=less), self._bound_ns, ROUNDS)
        if self._is_first and plans[0].recomputes:
            used = set(plans[0].recomputes)
            alike = max(families(self._pool.options), key=lambda them: sum(o.recompute in used for o in them))
            self._pool, self._is_first = replace(self._pool, options=alike), False
        return plans


def _reserved(problem: Problem, made: Plan) -> int:
    return simulate(problem.step.trace, problem.machine, made).peak_reserved_bytes


def _plans(asked: Problem, pool: Pool, bound_ns: int, share: int) -> list[Plan]:
    """Plans for a budget of allocated bytes that is no more than the one asked for, the fastest first.

    Where several budgets share the effort, `share` is how many.
    """
    step = asked.step
    if step.level.max() <= pool.problem.budget_bytes:
        return [_bounded(asked, as_plan(asked, NAME), int(step.at_ns[-1]), bound_ns)]
    trials = sorted(_first_trials(pool), key=lambda trial: trial.cost)
    if not trials:
        trials = [_least(pool)]
    best = refined(pool, trials[0], bound_ns, bound_ns + int(GAP_SHARE * step.at_ns[-1]), share)
    plans = [_bounded(asked, trial.plan(NAME), trial.cost[0], bound_ns) for trial in (best, *trials)]
    return [replace(made, budget_bytes=asked.budget_bytes) for made in plans]


def _least(pool: Pool) -> Trial:
    """Swap all that may be, beside all recomputes of one kind or none: what needs the fewest bytes, whatever it costs.

    Raises:
        Infeasible: even that is above the budget.
    """
    bases = [pool.basis(agreeing(recipes)) for recipes in ((), *families(pool.options))]
    least = min(bases, key=lambda basis: peak_of(basis.asked.step, basis.on_demand(basis.n)))
    if not least.fits(least.n):
        raise infeasible(pool.problem, NAME, pool.n, least.on_demand(least.n) if least.options else None)
    return arranged(least, least.n)


def _bounded(problem: Problem, made: Plan, step_ns: int, bound_ns: int) -> Plan:
    bound = Bound(machine=problem.machine.name, step_ns=step_ns, lower_bound_ns=min(step_ns, bound_ns))
    return replace(made, bound=bound)


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
    """The other planners' plans, and the program's choices, without recomputes and with them."""
    problem, plain = pool.problem, pool.basis(())
    if plain.fits(pool.n):
        for planner in (swap_greedy, swap_all):
            yield tried(plain, moves_of_plan(problem.step, planner(problem)))
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
