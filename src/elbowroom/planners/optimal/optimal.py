"""optimal: the fastest plan found, and a proof of how much faster any other could be.

Computes: what to keep, what to swap, what to recompute, and the algorithm of each op (algorithm_choice.py). The pipe
program (pipe.py) says which storages should go if links moved bytes as pipes move water. It also bounds what any plan
can reach. Its choices and the other planners' plans are where annealing begins (rough_trials.py). The fastest trial is
improved by exchanges, each of them played (refine.py), until the bound is met or the effort is spent.
Reference: pipe.py names it; improving by exchanges is local search (Papadimitriou and Steiglitz, "Combinatorial
Optimization", 1982, chapter 19). Optimal: if it meets the bound, or if there are few options, as then all of them are
played (exhaustive.py). Never slower, simulated, than any baseline that meets the same budget of allocated bytes
(baseline_trials.py). For reserved bytes, baselines are asked only if annealing found nothing near the bound, or if the
step is a small one. Ignores: what the simulator ignores. Cost: the program's, then plays of n log n each, fewer of them
the larger n is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from elbowroom.allocator.blocks import SMALL_BYTES
from elbowroom.errors import Infeasible
from elbowroom.plan import Bound, Plan
from elbowroom.planners.budget.confirm_reserved import replayed
from elbowroom.planners.budget.infeasible import in_reserved_bytes, infeasible, reserves_more
from elbowroom.planners.optimal.algorithm_choice import (
    choices_near,
    deciding_algorithms,
    every,
    every_count,
    fastest,
    optimistic,
    smallest,
)
from elbowroom.planners.optimal.baseline_trials import BASELINES, seeds_in_reserved, trial_of
from elbowroom.planners.optimal.exhaustive import are_few, fastest_of_all, least_of_all
from elbowroom.planners.optimal.neighbours import Neighbour, Neighbours, start_near
from elbowroom.planners.optimal.pipe_bound import alike, bound_ns
from elbowroom.planners.optimal.refine import (
    ALL_PLAYED,
    Accept,
    Pool,
    best_of_all,
    choice_count,
    exchanged,
    in_turn,
    neighbours,
    refined,
    trial_count,
)
from elbowroom.planners.optimal.reserved_trials import (
    AcceptedTrials,
    FittingTrial,
    fastest_within,
    frugalest,
    held_within,
)
from elbowroom.planners.optimal.rough_trials import GAP_SHARE, NAME, Found, Search, Start, effort_of, pool_of
from elbowroom.planners.optimal.state_choice import all_away, states_near, states_on_offer
from elbowroom.planners.optimal.swaps_after_recomputes import Basis
from elbowroom.planners.optimal.trial import Trial, arranged, tried
from elbowroom.planners.problem import Problem, as_plan, movable, peak_of, with_disk, without_disk
from elbowroom.step.least_size import least_size

Made = TypeVar("Made")

FEW_SAVES = 100
"""With fewer saves than this, the baselines are asked for reserved bytes too: it takes little time."""
FAR = 1.1
"""If the best trial is above the bound by this factor, the baselines are asked for reserved bytes too."""
VERY_FAR = 1.5
"""By this factor, a second search has states come back as if all saves stayed (`sets_of`)."""
STAYING_OPS = (5, 20, 60, 200, 1000)
"""Numbers of ops up to which what recipes make on their way stays, where all that may be dropped is."""
MOST_REMADE = 200
"""Those below one such part of the step's ops are left out: recipes would make most of it again and again."""
SMALL_PARTS = 1000
"""Storages in small segments stay if they are smaller than one such part of a budget of reserved bytes."""
MOST_FRUGAL = 3
"""Number of choices that allocate least that are replayed to see what the allocator needs."""
SEARCHED_SHARE = 0.8
"""Share of what the trial that reserves least needs: for less, the search ends once no rung has a trial within it.

Annealing has found trials within 0.87 of it: a 3D U-Net on an RTX 3060, simulated, takes 1.08 times its step there.
"""
SHARE = 3
"""If every improvement is replayed, the number of trials is divided by this."""


def optimal(problem: Problem) -> Plan:
    """Meet the budget at the least simulated time found, or energy if the problem has prices.

    Raises:
        Infeasible: no plan that was found meets the budget.
    """
    caching, problem = problem.machine.allocator != "exact", with_disk(problem)
    ideal = optimistic(problem)
    if problem.host_bytes is not None:  # the program does not know two tiers: for the bound, any storage may go
        ideal = replace(ideal, tier_bytes=2**62)
    ideal_ns = int(ideal.step.at_ns[-1])
    for way in (problem, fastest(problem)):
        kept, step = as_plan(way, NAME), way.step
        fits = int(step.level.max()) <= problem.budget_bytes and int(step.at_ns[-1]) == ideal_ns
        if fits and (not caching or _is_free(problem, kept)):
            return _bounded(problem, kept, ideal_ns, ideal_ns)
    bound = ideal_ns + bound_ns(ideal, movable(ideal), alike(ideal.step, states_on_offer(ideal)))
    enough_ns = bound + int(GAP_SHARE * problem.step.at_ns[-1])
    if caching:
        held = _reserving(problem, bound, enough_ns)
        best = held.found[0]
        return _bounded(problem, best.plan(NAME), held.step_ns - best.extra_ns, bound)
    made = partial(_allocating, problem, bound, enough_ns)
    return _of_every(problem, made, bound) if are_few(problem) else made()


def _allocating(problem: Problem, bound: int, enough_ns: int) -> Plan:
    """Return the best plan found whose allocated bytes are within the budget.

    Raises:
        Infeasible: there is no such plan.
    """
    found = Search(problem).annealed(problem.budget_bytes, enough_ns, BASELINES)
    best = _refined(problem, (found or [_least(problem)])[0], bound, enough_ns, share=round(1 / effort_of(problem)))
    return _bounded(problem, best.plan(NAME), best.done.step_ns, bound)


def _of_every(problem: Problem, search: Callable[[], Plan], bound: int) -> Plan:
    """Return the fastest of all plans of a small step. Raises Infeasible with the least budget if there is none."""
    try:
        made = search()
    except Infeasible as found:
        least, moves = least_of_all(problem)
        if peak_of(least.step, moves) >= found.least_feasible_bytes:
            raise
        if peak_of(least.step, moves) > problem.budget_bytes:
            raise infeasible(least, NAME, moves.n, moves) from None
        made = None
    if problem.prices is None and made is not None and made.bound is not None and made.bound.step_ns <= bound:
        return made
    best, step_ns = fastest_of_all(problem, made)
    return _bounded(problem, replace(best, planner=NAME), step_ns, bound)


def _reserving(problem: Problem, bound: int, enough_ns: int) -> FittingTrial:
    """Return the best trial found that an allocator with the budget as its limit has room for.

    Raises:
        Infeasible: there is no such trial.
    """
    bases, budget_bytes = _frugal_bases(problem), problem.budget_bytes
    if problem.follows and bases[0][0] > budget_bytes:  # a refusal names the least of what may move there
        problem = replace(problem, min_size_bytes=max(problem.min_size_bytes, least_size(bases[0][0])))
        bases = _frugal_bases(problem)
    least_bytes, known = bases[0][0], _known(problem)
    below, starts = known.below(budget_bytes), list(known.starts(budget_bytes, least_bytes))
    best = None if below is None else held_within(below, budget_bytes)

    def nearest() -> Start | None:
        found, limit_bytes = _frugalest(problem, bases)
        if SEARCHED_SHARE * limit_bytes > budget_bytes:
            return None
        return start_near(Neighbour.of(limit_bytes, found), budget_bytes, least_bytes)

    for all_stay in (False, True) if problem.moves_states and problem.shared is None else (False,):
        search = Search(_of_large(problem), all_stay=all_stay)
        ladder = partial(search.annealed_within, frugalest=nearest, near=starts)
        found = fastest_within(budget_bytes, least_bytes, ladder, enough_ns)
        best = min(filter(None, (best, found)), key=lambda each: each.step_ns, default=None)
        if best.step_ns <= VERY_FAR * bound if best is not None else nearest() is None:
            break
    frugal = (held_within(found, budget_bytes) for _, found in bases[:MOST_FRUGAL])
    held = best or next(filter(None, frugal), None)
    if held is None:
        found, limit_bytes = _frugalest(problem, bases)
        held = held_within(found, budget_bytes)
        if held is None:
            raise _over_reserved(problem, least_bytes, max(limit_bytes, budget_bytes + 1))
    if problem.shared is None:
        held = _improved(problem, held, bound, enough_ns)
    known.add(budget_bytes, held)
    return held


def _improved(problem: Problem, held: FittingTrial, bound: int, enough_ns: int) -> FittingTrial:
    """Return the best trial that the baselines and exchanges find from a trial on."""
    is_small = len(problem.step.saves) <= FEW_SAVES and held.step_ns > enough_ns
    held = _or_baseline(problem, held) if is_small or held.step_ns > FAR * bound else held
    within = AcceptedTrials(held, problem.budget_bytes)
    _refined(problem, held.found, bound, enough_ns, within, SHARE)
    return within.best


def _known(problem: Problem) -> Neighbours:
    """Return the trials for other budgets of the same problem."""
    shared = {} if problem.shared is None else problem.shared
    return shared.setdefault(problem.prices is None, Neighbours())


def _once(problem: Problem, name: str, make: Callable[[], Made]) -> Made:
    """Return what does not depend on the budget: it is made once, however many budgets are asked for."""
    known, key = problem.memo if problem.shared is None else problem.shared, (name, problem.kind)
    if key not in known:
        known[key] = make()
    return known[key]


def _frugal_bases(problem: Problem) -> list[tuple[int, Found]]:
    """Return different choices that allocate few bytes, the least first."""

    def make() -> list[tuple[int, Found]]:
        bases = sorted(_bases(problem), key=lambda each: (each[0], each[1][0].cost))
        return [each for k, each in enumerate(bases) if not k or each[1][0].cost != bases[k - 1][1][0].cost]

    return _once(problem, "bases", make)


def _frugalest(problem: Problem, bases: Sequence[tuple[int, Found]]) -> tuple[Found, int]:
    """Return the trial with the least limit of reserved bytes, and that limit."""

    def make() -> tuple[Found, int]:
        at_least = replace(problem, budget_bytes=bases[0][0])
        frugal = [found for _, found in bases[:MOST_FRUGAL]]
        return frugalest(frugal, Search(at_least).rough, partial(_near, at_least))

    return _once(problem, "frugalest", make)


def _of_large(problem: Problem) -> Problem:
    """Return the problem without storages whose blocks share small segments: what leaves these frees no other."""
    least_bytes = min(SMALL_BYTES, problem.budget_bytes // SMALL_PARTS)
    return replace(problem, min_size_bytes=max(problem.min_size_bytes, least_bytes))


def _or_baseline(problem: Problem, held: FittingTrial) -> FittingTrial:
    """Return the fastest of a trial and the baselines' plans within the same reserved bytes."""
    for made in seeds_in_reserved(without_disk(problem)):
        found = trial_of(pool_of(deciding_algorithms(problem, made.algorithms)), made)
        other = None if found is None else held_within(found, problem.budget_bytes)
        held = other if other is not None and other.step_ns < held.step_ns else held
    return held


def _near(problem: Problem, trial: Trial, pool: Pool) -> Iterator[Trial]:
    """Yield trials with one of swaps, recomputes and states changed, in turn."""
    undecided = deciding_algorithms(problem, trial.basis.asked.algorithms)
    of_states = states_near(undecided, pool, trial) if problem.moves_states else iter(())
    return in_turn(neighbours(pool, trial), of_states)


def _refined(
    problem: Problem, found: Found, bound: int, enough_ns: int, accept: Accept | None = None, share: int = 1
) -> Trial:
    """Improve on a trial by exchanges: of swaps and recomputes, of algorithms, of states."""
    best, pool = found
    best, left = refined(pool, best, bound, enough_ns, share, accept), trial_count(pool, share)
    if 1 < every_count(problem) * choice_count(pool) <= ALL_PLAYED:
        for way in every(problem):
            best = best_of_all(pool_of(way), best, bound, accept)
    best = exchanged(partial(choices_near, problem, pool), best, enough_ns, left, accept)
    if problem.moves_states:
        undecided = deciding_algorithms(problem, best.basis.asked.algorithms)
        best = exchanged(partial(states_near, undecided, pool), best, enough_ns, left, accept)
    return best


def _is_free(problem: Problem, made: Plan) -> bool:
    """Tell whether the allocator has room for a plan without turning to the driver."""
    found = replayed(problem.step.trace, problem.machine, made, problem.budget_bytes)
    return found.fits and not found.is_driven


def _bases(problem: Problem) -> list[tuple[int, Found]]:
    """Return choices that need few bytes, at any cost in time, each with its allocated bytes.

    Everything that may move is swapped and comes back on demand, with all recomputes of one kind or without any. If the
    lower tiers hold too little, all is kept. The choices depend on no budget.
    """
    ways = {way.algorithms: way for way in (smallest(problem), fastest(problem))}
    pools = [pool_of(way) for way in (*ways.values(), all_away(smallest(problem)))]
    bases = [(basis, pool) for pool in pools for basis in _dropping(pool)]
    moves = [(basis, pool, basis.on_demand(basis.n)) for basis, pool in bases]
    moves += [(basis, pool, basis.on_demand(basis.n[:0])) for basis, pool in bases if not basis.options]
    return [
        (peak_of(basis.asked.step, each), (tried(basis, each), pool))
        for basis, pool, each in moves
        if not len(each.n) or basis.asked.holds(each)
    ]


def _dropping(pool: Pool) -> Iterator[Basis]:
    """Yield the recomputes of nothing, and of all that may be dropped, more or less of which stays once it is made."""
    yield pool.basis(())
    least = (pool.problem.step.end_op - pool.problem.step.first_op) // MOST_REMADE
    for most_ops in (each for each in STAYING_OPS if each >= least and pool.recipes.droppable):
        yield pool.basis([recipe.option for recipe in pool.recipes.of(pool.recipes.droppable, most_ops, None)])


def _least(problem: Problem) -> Found:
    """Return the choice that allocates least, arranged.

    Raises:
        Infeasible: even that is above the budget.
    """
    least_bytes, (trial, pool) = min(_bases(problem), key=lambda each: each[0])
    basis = trial.basis
    if least_bytes > problem.budget_bytes:
        raise infeasible(pool.problem, NAME, pool.n, trial.moves if basis.options else None)
    return arranged(basis, basis.n), pool


def _over_reserved(problem: Problem, least_bytes: int, limit_bytes: int) -> Infeasible:
    """Return the error for a budget of reserved bytes that is not met."""
    if least_bytes > problem.budget_bytes:
        try:
            _least(problem)
        except Infeasible as found:
            return in_reserved_bytes(found, limit_bytes)
    return reserves_more(problem, NAME, limit_bytes)


def _bounded(problem: Problem, made: Plan, step_ns: int, bound_ns: int) -> Plan:
    bound = Bound(machine=problem.machine.name, step_ns=step_ns, lower_bound_ns=min(step_ns, bound_ns))
    return replace(made, bound=bound, budget_bytes=problem.budget_bytes)
