"""every_plan: all plans of a step so small that they can be played one by one.

Computes: every plan that passes `check`, of swaps to every tier and back at every place, of sets of the recipes on
offer, and of algorithms. Of those, the fastest, or the one that needs the fewest bytes.
Reference: not needed. Optimal: always, among these plans. Ignores: recipes that are not on offer.
Cost: a check and a play for each; MOST_PLANS of them at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from math import prod

import numpy as np

from elbowroom.errors import InvalidPlan
from elbowroom.files.field_rules import MAX_INT
from elbowroom.machine import TierName
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.planners.optimal.algorithm_choice import offered
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.problem import Problem, peak_of
from elbowroom.simulate.lanes import moved_bytes, play
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.check import check_step
from elbowroom.step.last_step import listed, why_kept
from elbowroom.step.moves import Moves, moves_of_plan, tiers_of_plan
from elbowroom.step.recipes import RecomputeOption, options

MOST_PLANS = 300
"""Up to this number of plans, all are played."""


def are_few(problem: Problem) -> bool:
    """Tell whether all plans can be played."""
    step, most = problem.step, MOST_PLANS.bit_length()
    largest = max((tier.capacity_bytes for tier in problem.machine.tiers[1:]), default=0)
    fits = (step.size >= max(1, problem.min_size_bytes)) & (step.size <= largest)
    if np.count_nonzero(fits[len(step.saves) :]) >= most or np.count_nonzero(fits) > 2 * MOST_PLANS:
        return False
    saves = sum(1 for n in np.nonzero(fits[: len(step.saves)])[0].tolist() if why_kept(step, n) is None)
    return saves < most and len(_on_offer(problem)) < most and _count(problem) <= MOST_PLANS


def fastest_of_all(problem: Problem, known: Plan | None) -> tuple[Plan, int]:
    """Return the plan that costs least of all within the budget, and its time; of equals the one that moves least.

    Args:
        problem: an undecided problem; some plan meets its budget.
        known: a plan within the budget.
    """
    found = ((known, *_cost(problem, known)) for known in ([known] if known else []))
    within = (made for made in _every(problem) if _peak(problem, made) <= problem.budget_bytes)
    played = ((made, *_cost(problem, made)) for made in within if _may_run(problem, made))
    best, cost_ns, _, extra_ns = min(chain(found, played), key=lambda each: each[1:3])
    return best, cost_ns - extra_ns


def least_of_all(problem: Problem) -> tuple[Problem, Moves]:
    """Return the problem and the moves of the plan that needs the fewest bytes."""
    for made in sorted(_every(problem), key=lambda made: _peak(problem, made)):
        if _may_run(problem, made):
            step = with_algorithms(problem.step, made.algorithms)
            return replace(problem, step=step, algorithms=made.algorithms), moves_of_plan(step, made)
    raise AssertionError("to keep everything may always run")


def _peak(problem: Problem, made: Plan) -> int:
    """Return the allocated bytes that a plan needs."""
    step = with_algorithms(problem.step, made.algorithms)
    return peak_of(step, moves_of_plan(step, made))


def _cost(problem: Problem, made: Plan) -> tuple[int, int, int]:
    """Return what a plan costs (time, and what `Problem.extra_ns` adds), the bytes it moves, and what was added."""
    step = with_algorithms(problem.step, made.algorithms)
    moves = moves_of_plan(step, made)
    done = play(step, moves, problem.machine, tiers_of_plan(step, made, moves))
    extra_ns = problem.extra_ns(moves, done)
    return done.step_ns + extra_ns, moved_bytes(moves, done), extra_ns


def _may_run(problem: Problem, made: Plan) -> bool:
    try:
        check_step(problem.step, made, problem.machine)
    except InvalidPlan:
        return False
    return True


def _every(problem: Problem) -> Iterator[Plan]:
    """Yield all plans, unchecked ones included."""
    windows, algorithms = _swaps(problem), _algorithms(problem)
    for recipes in _recipes(problem):
        dropped = {storage for option in recipes for storage in option.recompute.storages}
        kept = [[swap for swap in each if swap is None or swap.storage not in dropped] for each in windows]
        for chosen, others in product(product(*kept), product(*algorithms)):
            swaps = sorted((swap for swap in chosen if swap is not None), key=lambda swap: swap.out_after_op)
            recomputes = sorted((option.recompute for option in recipes), key=lambda each: each.before_op)
            decided = tuple(each for each in others if each is not None)
            yield _plan(problem, swaps=tuple(swaps), recomputes=tuple(recomputes), algorithms=decided)


def _count(problem: Problem) -> int:
    """Return the number of plans; more than MOST_PLANS if already each storage, dropped or not, gives more."""
    count, droppable = prod(map(len, (*_swaps(problem), *_algorithms(problem)))), ClosedRecipes(problem).droppable
    return count * 2 ** len(droppable) if count * 2 ** len(droppable) > MOST_PLANS else count * len(_recipes(problem))


def _swaps(problem: Problem) -> list[list[Swap | None]]:
    """Return for each window its choices: to keep it, or each swap of it that may run."""
    step = problem.step
    tiers: list[TierName] = [tier.name for tier in problem.machine.tiers[1:]]
    found: list[list[Swap | None]] = []
    for n, storage in enumerate(listed(step.storage)):
        may: list[Swap | None] = [None]
        if problem.means_of(n) in problem.allow and step.size[n] >= max(1, problem.min_size_bytes):
            places = sorted({*listed(step.ticks), step.first_op, step.end_op, int(step.first_read[n])}, reverse=True)
            for tier, back in product(tiers, places):
                swap = Swap(storage=storage, tier=tier, out_after_op=int(step.saved_at[n]) - 1, back_before_op=back)
                may += [swap] if _may_run(problem, _plan(problem, swaps=(swap,))) else []
        found.append(may)
    return found


def _plan(
    problem: Problem,
    *,
    swaps: tuple[Swap, ...] = (),
    recomputes: tuple[Recompute, ...] = (),
    algorithms: tuple[Algorithm, ...] = (),
) -> Plan:
    """Return a plan without a budget."""
    return Plan(
        trace_id=problem.step.trace.id,
        planner="every_plan",
        budget_bytes=MAX_INT,
        swaps=swaps,
        recomputes=recomputes,
        algorithms=algorithms,
    )


def _recipes(problem: Problem) -> list[tuple[RecomputeOption, ...]]:
    """Return the sets of recipes on offer that can be carried out together, and those that are closed together."""
    on_offer = _on_offer(problem)
    sets = (chosen for count in range(len(on_offer) + 1) for chosen in combinations(on_offer, count))
    return list(dict.fromkeys([*(chosen for chosen in sets if _are_apart(chosen)), *ClosedRecipes(problem).every()]))


def _are_apart(recipes: tuple[RecomputeOption, ...]) -> bool:
    dropped = [storage for option in recipes for storage in option.recompute.storages]
    return len(set(dropped)) == len(dropped)


def _on_offer(problem: Problem) -> tuple[RecomputeOption, ...]:
    if "recompute" not in problem.allow:
        return ()
    found = options(problem.step, max(1, problem.min_size_bytes))
    return tuple(option for option in found if problem.judge(option.recompute))


def _algorithms(problem: Problem) -> list[list[Algorithm | None]]:
    """Return for each op with several algorithms its choices: None for the recorded one, or another one."""
    return [[None, *(Algorithm(op=op, choice=c.name) for c in each[1:])] for op, each in offered(problem).items()]
