"""program: the pipe program (pipe.py) for a problem: its choice for a budget, and its bound.

Computes: which swaps and recomputes the pipe would make, and the least time beyond the ops that every plan takes.
Reference: pipe.py names it. Optimal: for the pipe. Ignores: what pipe.py ignores. Cost: that of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from elbowroom.planners.optimal.pipe import (
    NOTHING_SAVED,
    Offer,
    Pipe,
    PipeChoice,
    choose,
    marks_of,
    swaps_on_offer,
)
from elbowroom.planners.optimal.pipe_recomputes import Recomputes, makers_on_offer
from elbowroom.planners.problem import Problem
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Ints, LastStep
from elbowroom.step.routes import link_to

MOST_MARKS, FEWER_MARKS = 250, 160
"""Marks of each kind in the program for the bound, and for a choice. More marks cost time and hardly raise the bound
(see docs/planning.md)."""
MUCH = 0.25
"""States are much of a budget from this share of it on."""
TOLERANCE = 1e-6
"""Tolerance of the solver, as a share of the step: a bound is lowered by it before it is rounded up to whole ns."""


def bound_ns(problem: Problem, n: Ints, states: Sequence[Ints] = ()) -> int:
    """Return the least time beyond the ops of every plan, in whole ns: see Note: [Why the pipe is a lower bound]."""
    makers = makers_of(problem, may_drop="recompute" in problem.allow)
    least_ns = choice_of(problem, n, (), makers, problem.budget_bytes, MOST_MARKS, states).bound_ns
    return max(0, ceil(least_ns - TOLERANCE * float(problem.step.at_ns[-1])))


def choice_of(
    problem: Problem,
    n: Ints,
    early: list[tuple[int, int]] | tuple[()],
    recomputes: Recomputes,
    budget_bytes: int,
    most_marks: int = FEWER_MARKS,
    states: Sequence[Ints] = (),
) -> PipeChoice:
    """Return the choice of the pipe program for a budget. `most_marks` of each kind are looked at."""
    decided = problem.states if problem.states and are_much(problem, problem.states.moves.size) else None
    step = problem.step if decided is None else decided.step
    states = states if decided is None else alike(step, decided.moves.n)
    swaps = swaps_on_offer(step, n, early, states)
    if not len(step.ticks):
        return NOTHING_SAVED
    offer = Offer(
        step=step,
        swaps=swaps,
        recomputes=recomputes,
        marks=marks_of(step, swaps, budget_bytes, most_marks, recomputes),
        pipe=_pipe(problem, swaps.n),
        budget_bytes=budget_bytes,
        decided=decided is not None,
    )
    return choose(offer, problem.time_limit_s)


def makers_of(problem: Problem, *, may_drop: bool) -> Recomputes:
    """Return what any recipe for a storage of a problem runs; nothing is on offer if none may be dropped."""
    return makers_on_offer(problem.step, problem.min_size_bytes if may_drop else 2**63 - 1)


def are_much(problem: Problem, size: Ints) -> bool:
    """Tell whether states of some sizes are so much of the budget that the program is to count their copies.

    If an optimizer steps in one go, all of them are there at once: then the program has no place to bring one back.
    """
    return len(problem.step.parts) > 0 and int(size.sum()) > MUCH * problem.budget_bytes


def alike(step: LastStep, n: Ints) -> list[Ints]:
    """Return states in groups of those that are idle from the same tick to the same use."""
    if not len(n):
        return []
    places = np.stack([step.saved_at[n], step.first_read[n], step.freed[n], step.returns[n]], axis=1)
    _, group = np.unique(places, axis=0, return_inverse=True)
    return [n[group.ravel() == k] for k in range(int(group.max()) + 1)]


def _pipe(problem: Problem, n: Ints) -> Pipe:
    """Return rates that no copy of these saves exceeds."""
    if problem.tier is None or not len(n):
        return Pipe(out=1.0, back=1.0)
    size = problem.step.size[n]
    out_ns, back_ns = copy_ns(link_to(problem.machine, problem.tier), size)
    return Pipe(out=float((size / np.maximum(1, out_ns)).max()), back=float((size / np.maximum(1, back_ns)).max()))
