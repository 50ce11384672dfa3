"""choosing: the algorithm of each op, in addition to swaps and recomputes.

Computes: steps with other algorithms for `optimal` to plan on: the fastest everywhere; or the fastest, but the least
workspace for ops above the budget. Also exchanges of single choices in a plan, each played.
Reference: vDNN (see vdnn.py) for giving workspace up only where memory is short; local search as in refine.py.
Optimal: if there are few choices, as then all of them are played. Ignores: exchanges of two choices at once.
Cost: linear in the step per step made; a play per exchange.

Note: [The optimistic step]
Let every op take the time of its fastest choice and the workspace of its smallest one, even if no choice has both. A
plan with any algorithms, played, meets the rows of the program of pipe.py for that step. The program's slots are no
higher. If the plan's ops are slower, the extra time is part of what the program calls waits. So the program's cost and
the time of the optimistic ops together are no more than that plan takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from elbowroom.plan import Algorithm
from elbowroom.planners.optimal.refine import Pool, covered
from elbowroom.planners.optimal.state_choice import again
from elbowroom.planners.optimal.swaps_after_recomputes import basis_of
from elbowroom.planners.optimal.trial import Trial, tried
from elbowroom.planners.problem import Problem
from elbowroom.step.algorithms import with_algorithms, with_choices, workspace_of
from elbowroom.step.last_step import LastStep
from elbowroom.step.moves import need
from elbowroom.trace import Choice

Chosen = Mapping[int, Choice]
"""Op -> its algorithm."""


def offered(problem: Problem) -> dict[int, tuple[Choice, ...]]:
    """Return op -> the algorithms on offer, the recorded one first, for ops with several."""
    if "algorithm" not in problem.allow:
        return {}
    step = problem.step
    choices = {op: step.trace.ops[op].choices for op in range(step.first_op, step.end_op)}
    return {op: each for op, each in choices.items() if len(each) > 1}


def choosing(problem: Problem, chosen: Chosen) -> Problem:
    """Return an undecided problem with some algorithms decided; recorded algorithms are left out of the plan."""
    step = problem.step
    other = {op: choice for op, choice in sorted(chosen.items()) if choice is not step.trace.ops[op].choices[0]}
    named = tuple(Algorithm(op=op, choice=choice.name) for op, choice in other.items())
    return replace(problem, step=with_choices(step, other), algorithms=named) if other else problem


def optimistic(problem: Problem) -> Problem:
    """Return the problem on a step that is as fast and as low as any algorithms allow; see the Note above."""
    step, best = problem.step, dict[int, Choice]()
    for op, choices in offered(problem).items():
        workspace = workspace_of(step, op)
        recorded_bytes = int(step.storage_bytes[workspace]) if workspace is not None else 0
        best[op] = Choice(
            name="optimistic",
            duration_ns=min(step.op_ns(op), *(choice.duration_ns for choice in choices)),
            workspace_bytes=min(recorded_bytes, *(choice.workspace_bytes for choice in choices)),
        )
    return replace(problem, step=with_choices(step, best)) if best else problem


def fastest(problem: Problem) -> Problem:
    """Return the problem with the fastest algorithm for every op."""
    return choosing(problem, {op: min(choices, key=_by_time) for op, choices in offered(problem).items()})


def smallest(problem: Problem) -> Problem:
    """Return the problem with the algorithm of the least workspace for every op."""
    return choosing(problem, {op: min(choices, key=_by_size) for op, choices in offered(problem).items()})


def frugal(problem: Problem) -> Problem:
    """Return the problem with the fastest algorithms, but the smallest for ops above the budget with the fastest."""
    fast, chosen = fastest(problem).step, dict[int, Choice]()
    for op, choices in offered(problem).items():
        above = _highest(fast, op) > problem.budget_bytes
        chosen[op] = min(choices, key=_by_size if above else _by_time)
    return choosing(problem, chosen)


def deciding_algorithms(problem: Problem, named: tuple[Algorithm, ...]) -> Problem:
    """Return an undecided problem with some algorithms decided, given as a plan has them."""
    return replace(problem, step=with_algorithms(problem.step, named), algorithms=named)


def every(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with each combination of algorithms."""
    on_offer = offered(problem)
    for choices in product(*on_offer.values()):
        yield choosing(problem, dict(zip(on_offer, choices, strict=True)))


def every_count(problem: Problem) -> int:
    """Return the number of combinations of algorithms."""
    return prod(len(choices) for choices in offered(problem).values())


def choices_near(problem: Problem, pool: Pool, best: Trial) -> Iterator[Trial]:
    """Yield trials with one algorithm changed: those that gain most time first, then those that free most memory."""
    named = {algorithm.op: algorithm.choice for algorithm in best.basis.asked.algorithms}
    on_offer = offered(problem)
    now = {op: next((c for c in cs if c.name == named.get(op)), cs[0]) for op, cs in on_offer.items()}
    above = [op for op in now if _highest(best.basis.asked.step, op) > problem.budget_bytes]
    faster = [(op, c) for op, cs in on_offer.items() for c in cs if c.duration_ns < now[op].duration_ns]
    smaller = [(op, c) for op in above for c in on_offer[op] if c.workspace_bytes < now[op].workspace_bytes]
    faster.sort(key=lambda each: (each[1].duration_ns - now[each[0]].duration_ns, each[0]))
    smaller.sort(key=lambda each: (each[1].workspace_bytes - now[each[0]].workspace_bytes, each[0]))
    for op, choice in dict.fromkeys((*faster, *smaller)):
        changed = again(choosing(problem, {**now, op: choice}), best.basis.asked.states)
        basis = basis_of(changed, pool.n, best.basis.options)
        moves = basis.moves(best.moves.n, best.moves.back)
        if int(need(changed.step, moves).max()) <= changed.budget_bytes:
            yield tried(basis, moves)
        trial = covered(basis, best.moves.n)
        if trial is not None:
            yield trial


def _highest(step: LastStep, op: int) -> int:
    """Return the peak of allocated bytes while an op runs, with everything kept."""
    begin, end = (int(point) for point in step.point_of[op - step.first_op : op - step.first_op + 2])
    return int(np.max(step.level[begin : end + 1]))


def _by_time(choice: Choice) -> tuple[int, int]:
    return choice.duration_ns, choice.workspace_bytes


def _by_size(choice: Choice) -> tuple[int, int]:
    return choice.workspace_bytes, choice.duration_ns
