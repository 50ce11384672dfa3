"""searching: trials for one budget of allocated bytes after the other, for `optimal` to refine.

Computes: the baselines' plans, and the pipe program's choices (program_starts.py), from which annealing goes on. All of
it for a few steps: with algorithms decided, and with more or fewer optimizer states away. Reference: optimal.py.
Optimal: never by itself. Ignores: what the simulator ignores.
Cost: a few linear programs per step, then the effort of annealing once; all baselines, if they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import final

from elbowroom.planners.optimal.algorithm_choice import deciding_algorithms, fastest, frugal
from elbowroom.planners.optimal.annealing import ROUNDS, ROUNDS_NEAR, Chain, annealed, ease, first_chains
from elbowroom.planners.optimal.baseline_trials import seeds, trial_of
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.optimal.leaving import Leaving, Over, Scale, WeighedLeaving
from elbowroom.planners.optimal.program_starts import choices_of_programs
from elbowroom.planners.optimal.refine import Pool
from elbowroom.planners.optimal.state_choice import sets_of
from elbowroom.planners.optimal.trial import Trial
from elbowroom.planners.problem import Planner, Problem, movable, without_disk
from elbowroom.step.last_step import listed
from elbowroom.step.recipes import options

NAME = "optimal"
GAP_SHARE = 1e-3
"""A plan is good enough if it exceeds the bound by at most this share of the keep-all step."""
MOST_WITH_STATES = 1000
"""With more saves than this, states move only if nothing else meets the budget, or in exchanges."""
MOST_DROPPABLE = 12
"""With more storages that may be dropped, recomputes are chosen by annealing alone."""
QUICK = 3
"""Choices per placement of states by which the placement is judged."""
BROUGHT = 40
"""Most choices per step and budget that are brought within it; the others are estimated only."""

RUNG_SHARE, MOST_RUNGS = 0.93, 16
"""Of two rungs of the ladder of allocated bytes, the lower one as a share of the other; and the most rungs."""
LOOKS, MOST_LOOKS = 6, 24
"""Trials of each rung whose reserved bytes are counted: at least, and where steps are small."""
WHOLE_EFFORT_S = 10.0
"""With a time limit of less, fewer changes are made: a run waits for its plan, and asks for several."""
EFFORT_RUNG = 0.33
EFFORT_WITHIN = 0.5
"""Factors on the number of changes if reserved bytes are counted: for each rung, and for all of them together."""

Found = tuple[Trial, Pool]
Start = tuple[Scale, WeighedLeaving]


@final
class Search:
    """Search for trials of a problem.

    Args:
        problem: the problem; frugal algorithms are those for its budget.
        all_stay: where states come back: as for `sets_of`.
    """

    def __init__(self, problem: Problem, *, all_stay: bool = False) -> None:
        kept = (problem,) if int(problem.step.level.max()) <= problem.budget_bytes else ()
        ways = {way.algorithms: way for way in (fastest(problem), frugal(problem), *kept)}
        self._all_stay = all_stay
        self._asked, self._sets = problem, len(problem.step.saves) <= MOST_WITH_STATES
        self._pools = [pool_of(way) for way in ways.values()]

    def rough(self, budget_bytes: int) -> list[Found]:
        """Return trials within a number of allocated bytes that take little time to find, the fastest first."""
        return _sorted(_trials(self._starts(budget_bytes)))

    def annealed(self, budget_bytes: int, enough_ns: int, baselines: Sequence[Planner]) -> list[Found]:
        """Return the best trials found within a number of allocated bytes, the fastest first.

        Args:
            budget_bytes: allocated bytes.
            enough_ns: a step this fast ends the search.
            baselines: planners whose plans are looked at too.
        """
        of_baselines = list(_of_baselines(replace(self._asked, budget_bytes=budget_bytes), baselines))
        scales = {id(pool): Scale(pool) for _, pool in of_baselines}
        starts = self._starts(budget_bytes) + [_start(scales[id(pool)], trial) for trial, pool in of_baselines]
        chains = annealed(first_chains(starts), enough_ns, effort_of(self._asked))
        return _sorted([*_best(chains), *of_baselines])

    def annealed_within(
        self,
        budget_bytes: int,
        least_bytes: int,
        over: Over,
        enough_ns: int,
        frugalest: Callable[[], Start | None],
        near: Sequence[Start] = (),
    ) -> list[Start]:
        """Return the best trials found whose reserved bytes are within the budget, and those found on the way.

        A ladder of allocated bytes is gone down, from the budget to the first rung where the allocator has room without
        waits. On each rung trials are annealed for allocated bytes alone, and only the best are counted. From all of
        these annealing goes on for both. If only trials with waits are found, it begins once more, for those without.
        Where no trial of a rung is within the budget, the search ends there if what reserves least needs far more. If
        annealing finds none either, it goes on from what reserves least.

        Args:
            budget_bytes: reserved bytes.
            least_bytes: the least allocated bytes that can be planned for.
            over: counts the reserved bytes above the budget.
            enough_ns: a step this fast ends the search.
            frugalest: returns the trial that reserves least; None if that needs far more than the budget.
            near: trials for other budgets, to begin with too.
        """
        counted = [(scale, scale.counted(each, over)) for scale, each in near]
        counted += self._down_the_ladder(budget_bytes, least_bytes, over, enough_ns)
        are_over = all(each.over_bytes for _, each in counted)
        least = frugalest() if are_over else None
        if are_over and least is None:
            return []
        effort, rounds = effort_of(self._asked) * EFFORT_WITHIN, ROUNDS_NEAR if near else ROUNDS
        go_on = partial(annealed, enough_ns=enough_ns, effort=effort, rounds=rounds)
        chains = go_on(first_chains(counted, over))
        if near:
            return _ends(chains)
        driven = chains if any(each.best for each in chains) and not _any_within(chains) else []
        if driven:
            chains = go_on(first_chains(counted, over, against_waits=True))
        found = [*driven, *(chains if _any_within(chains) else go_on(chains))]
        if least is not None and not any(each.best for each in found):
            found += go_on(first_chains([(least[0], least[0].counted(least[1], over))], over))
        return _ends(found)

    def _down_the_ladder(self, budget_bytes: int, least_bytes: int, over: Over, enough_ns: int) -> Iterator[Start]:
        """Yield the best trials of each rung, counted, down to the first rung that has one without waits."""
        looks = max(LOOKS, int(MOST_LOOKS * ease(self._asked.step, counts_reserved=True)))
        for rung in self._rungs(budget_bytes, least_bytes):
            found = _counted(_played(self._on_rung(rung, enough_ns), looks), over)
            yield from found
            if any(not (each.over_bytes or each.is_driven) for _, each in found):
                return

    def _rungs(self, budget_bytes: int, least_bytes: int) -> Iterator[int]:
        """Yield the rungs to look at. If plans for several budgets are asked for, all of them share one ladder."""
        rungs = _rungs(budget_bytes, least_bytes)
        if self._asked.shared is not None:
            top_bytes = max(least_bytes, int(self._asked.step.level.max()))
            rungs = (rung for rung in _rungs(top_bytes, least_bytes) if rung <= budget_bytes)
        return islice(rungs, MOST_RUNGS)

    def _on_rung(self, rung: int, enough_ns: int) -> list[Start]:
        """Return trials for a number of allocated bytes alone, and choices that were estimated only."""
        shared = self._asked.shared if self._asked.shared is not None else {}
        ways = tuple(pool.problem.algorithms for pool in self._pools)
        key = (rung, ways, self._all_stay, self._asked.kind)
        if key not in shared:
            rough = self._starts(rung, few=True)
            effort = effort_of(self._asked) * EFFORT_RUNG
            plain = annealed(first_chains(_played(rough, LOOKS) or rough), enough_ns, effort)
            shared[key] = [*rough, *((of.scale, weighed) for of in plain for weighed in of.met)]
        return shared[key]

    def _starts(self, budget_bytes: int, *, few: bool = False) -> list[Start]:
        """Return the choices of the programs, estimated, and the best of them brought within the budget."""
        found = list[Start]()
        asked = replace(frugal(self._asked), budget_bytes=budget_bytes)
        for scale, choices in (*self._without_states(budget_bytes, few=few), *self._with_states(asked)):
            weighed = [scale.estimated(choice) for choice in choices]
            best = nsmallest(BROUGHT, weighed[1:], key=lambda each: each.cost_ns)
            found += [(scale, each) for each in (*weighed, *map(scale.brought_within, (weighed[0], *best)))]
        return found

    def _without_states(self, budget_bytes: int, *, few: bool) -> Iterator[tuple[Scale, list[Leaving]]]:
        """Yield what is on offer with all states there, with the choices of the programs."""
        for k, pool in enumerate(self._pools):
            scale = Scale(pool.within(budget_bytes))
            yield scale, list(choices_of_programs(scale.pool, few=few or k > 0))

    def _with_states(self, asked: Problem) -> Iterator[tuple[Scale, list[Leaving]]]:
        """Yield the same with each set of states away, in the best placement of a few, which share their programs."""
        for placings in sets_of(asked, all_stay=self._all_stay) if self._sets else ():
            scales = [Scale(pool_of(each)) for each in placings]
            choices = list(choices_of_programs(scales[0].pool, few=True))
            yield min(scales, key=partial(_least_ns, choices)) if len(scales) > 1 else scales[0], choices


def _least_ns(choices: Sequence[Leaving], scale: Scale) -> float:
    """Return the time of the best of the choices that are estimated to be fastest, brought within the budget."""
    best = nsmallest(QUICK, map(scale.estimated, choices), key=lambda each: each.cost_ns)
    return min(each.cost_ns for each in map(scale.brought_within, best))


def effort_of(problem: Problem) -> float:
    """Return the factor on the number of changes: a short time limit asks for a plan soon."""
    return min(1.0, problem.time_limit_s / WHOLE_EFFORT_S)


def pool_of(problem: Problem) -> Pool:
    """Return the choices on offer, once algorithms are decided; recomputes only if there are few."""
    recipes = ClosedRecipes(problem)
    few = bool(recipes.droppable) and len(recipes.droppable) <= MOST_DROPPABLE
    found = options(problem.step, max(1, problem.min_size_bytes)) if few else ()
    window_of, idle_from = problem.step.window_of, problem.step.idle_from
    offered = tuple(
        option
        for option in found
        if problem.judge(option.recompute)
        and all(int(idle_from[window_of[s]]) < option.recompute.before_op for s in option.recompute.storages)
    )
    return Pool(problem=problem, n=movable(problem), recipes=recipes, options=offered)


def _of_baselines(problem: Problem, baselines: Sequence[Planner]) -> Iterator[Found]:
    """Yield the baselines' plans, each with the pool of its algorithms."""
    pools: dict[object, Pool] = {}
    for _, made in seeds(without_disk(problem), baselines) if baselines else ():
        pool = pools.get(made.algorithms) or pool_of(deciding_algorithms(problem, made.algorithms))
        pools[made.algorithms] = pool
        found = trial_of(pool, made)
        if found is not None:
            yield found


def _start(scale: Scale, trial: Trial) -> Start:
    """Return a trial as a choice to begin with."""
    dropped = {storage for recompute in trial.basis.recomputes for storage in recompute.storages}
    choice = Leaving(scale.droppable.intersection(dropped), frozenset(listed(trial.moves.n)), margin=None)
    return scale, scale.estimated(choice)


def _rungs(budget_bytes: int, least_bytes: int) -> Iterator[int]:
    """Yield numbers of allocated bytes to plan for, from the budget down to the least."""
    rung = budget_bytes
    while rung > least_bytes:
        yield rung
        rung = max(least_bytes, int(rung * RUNG_SHARE))
    if rung == least_bytes:
        yield rung


def _played(starts: Iterable[Start], most: int) -> list[Start]:
    """Return some of the trials among choices, the fastest first, none twice."""
    different = {_cost(start): start for start in starts if start[1].trial is not None}
    return nsmallest(most, different.values(), key=_cost)


def _counted(trials: Iterable[Start], over: Over) -> list[Start]:
    """Count the bytes that trials reserve above the budget, up to the first one within it that waits for no driver."""
    found = list[Start]()
    for scale, each in trials:
        counted = scale.counted(each, over)
        found.append((scale, counted))
        if not (counted.over_bytes or counted.is_driven):
            break
    return found


def _cost(start: Start) -> float:
    return start[1].cost_ns


def _any_within(chains: Sequence[Chain]) -> bool:
    """Tell whether a choice is within the budget without waits for the driver."""
    return any(each.is_within for each in chains)


def _ends(chains: Sequence[Chain]) -> list[Start]:
    return [(of.scale, each) for of in chains for each in of.ends]


def _best(chains: Sequence[Chain]) -> list[Found]:
    return [(each.best.trial, each.scale.pool) for each in chains if each.best and each.best.trial]


def _trials(starts: Sequence[Start]) -> list[Found]:
    return [(each.trial, scale.pool) for scale, each in starts if each.trial is not None]


def _sorted(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda each: each[0].cost)
