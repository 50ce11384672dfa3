"""optimal: the fastest plan found, and a proof of how much faster any other could be.

Computes: what to keep and what to swap. The pipe program (flow.py) says which storages should go if links moved bytes
as pipes move water, and bounds what any plan can reach; its choice is made whole (covering.py), arranged and played,
for a few margins of the budget, beside the other planners' plans; the fastest is then improved by exchanges, each of
them played (refining.py), until the bound is met or the effort is spent.
Reference: flow.py names it; improving by exchanges is local search (Papadimitriou and Steiglitz, "Combinatorial
Optimization", 1982, chapter 19). Optimal: where it meets the bound; and where there are few options, as then all of
them are played. Never slower, simulated, than swap_greedy, swap_all and keep_all.
Ignores: what the simulator ignores. Cost: the program's, then plays of n log n each, fewer of them the larger n is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from elbowroom.lanes import copy_ns, link_to
from elbowroom.lifetimes import Ints
from elbowroom.moves import moves_of_plan
from elbowroom.plan import Plan
from elbowroom.planners.confirming import ROUNDS, within_reserved
from elbowroom.planners.covering import candidates, cover
from elbowroom.planners.flow import Choice, Effort, Pipe, choose, marks_of, swaps_on_offer
from elbowroom.planners.infeasible import infeasible
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of
from elbowroom.planners.refining import refined
from elbowroom.planners.swap_all import swap_all
from elbowroom.planners.swap_greedy import swap_greedy
from elbowroom.planners.trying import Trial, arranged, best_of, fits, tried
from elbowroom.simulate import simulate

NAME = "optimal"
GAP_SHARE = 1e-3
"""A plan that takes at most this share of the keep-all step longer than the bound is good enough."""
MOST_MARKS = 400
"""Marks of either kind in the program; more of them cost time and hardly raise the bound (see docs/planning.md)."""
NODES = ((300, 500), (1000, 100), (3000, 20))
"""(saves, nodes): up to so many saves, the solver's tree has so many nodes; beyond, the relaxation is rounded."""
MARGINS = (0.0, 1.0, 2.0)
"""The budget of the program, less so many times the largest storage that may move, which moves whole in the play."""


def optimal(problem: Problem) -> Plan:
    """Meet the budget at the least simulated time found.

    Raises:
        Infeasible: the step needs more than the budget with everything swapped and back on demand.
    """
    step, kept = problem.step, as_plan(problem, NAME)
    caching = problem.machine.allocator != "exact"
    if step.level.max() <= problem.budget_bytes and (not caching or _reserved(problem, kept) <= problem.budget_bytes):
        return kept
    n = movable(problem)
    if not fits(problem, n):
        raise infeasible(problem, NAME, n)
    if caching:
        least = peak_of(step, moves_on_demand(step, n))
        return within_reserved(problem, NAME, least, lambda tighter: _plans(problem, tighter, n, ROUNDS))
    return _plans(problem, problem, n, 1)[0]


def _reserved(problem: Problem, made: Plan) -> int:
    return simulate(problem.step.trace, problem.machine, made).peak_reserved_bytes


def _plans(asked: Problem, problem: Problem, n: Ints, share: int) -> list[Plan]:
    """Plans for a budget of allocated bytes that is no more than the one asked for, the fastest first.

    Where several budgets share the effort, `share` is how many.
    """
    step = problem.step
    if step.level.max() <= problem.budget_bytes:
        return [as_plan(asked, NAME)]
    chosen = _relaxed(problem, n, problem.budget_bytes)
    bound_ns = int(step.at_ns[-1]) + int(chosen.bound_ns)
    enough_ns = bound_ns + int(GAP_SHARE * step.at_ns[-1])
    trials = list(_first_trials(problem, n, chosen))
    best = refined(problem, n, best_of(trials), bound_ns, enough_ns, share)
    return [as_plan(asked, NAME, trial.moves) for trial in (best, *sorted(trials, key=lambda trial: trial.cost))]


def _relaxed(problem: Problem, n: Ints, budget_bytes: int) -> Choice:
    """What the pipe program makes of a budget."""
    step, swaps = problem.step, swaps_on_offer(problem.step, n)
    nodes = next((nodes for most, nodes in NODES if len(n) <= most), 0)
    effort = Effort(gap_ns=GAP_SHARE * float(step.at_ns[-1]), seconds=15.0, nodes=nodes)
    return choose(step, swaps, marks_of(step, swaps, budget_bytes, MOST_MARKS), _pipe(problem, n), budget_bytes, effort)


def _pipe(problem: Problem, n: Ints) -> Pipe:
    """The rates that no copy of these saves exceeds."""
    if problem.tier is None or not len(n):
        return Pipe(out=1.0, back=1.0)
    size = problem.step.size[n]
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), size)
    return Pipe(out=float((size / np.maximum(1, out_ns)).max()), back=float((size / np.maximum(1, back_ns)).max()))


def _first_trials(problem: Problem, n: Ints, chosen: Choice) -> Iterator[Trial]:
    """The other planners' plans, and the program's choices for a few margins."""
    step, among = problem.step, candidates(problem, n)
    for planner in (swap_greedy, swap_all):
        yield tried(problem, moves_of_plan(step, planner(problem)))
    for margin in MARGINS:
        budget_bytes = problem.budget_bytes - int(margin * step.size[n].max())
        choice = _relaxed(problem, n, budget_bytes) if margin else chosen
        if choice.found:
            whole = n[choice.swapped > 0.5]
            order = np.lexsort((n, -choice.swapped))
            yield from (
                arranged(problem, each) for each in (whole, cover(problem, among, order)) if fits(problem, each)
            )
