"""Which means that were not allowed would lower the least budget, as planned for the trace of a refused step."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.planners import Means, any_recompute
from elbowroom.planners.budget.run_budget import CourseRequest, course_within, least_allocated
from elbowroom.step.last_step import last_step
from elbowroom.trace import Part, Trace
from elbowroom.units import format_bytes

LOOKED_AT: tuple[Means, ...] = ("swap", "recompute", "state", "gradient")
"""Means that change no number."""
WORTH = 50
"""A means is named if it lowers the least budget by one part in this many."""
PATIENCE_S = 20.0
"""A training that has ended waits so long for these plans, and for the last one of them."""


def with_means(problem: Infeasible, request: CourseRequest) -> Infeasible:
    """An error that says which other means lower its least, and to what; itself where none does, or not in time.

    Args:
        problem: the refusal.
        request: what was refused; optimizer states can be looked at where its trace has parts for them.
    """
    question = _Question(replace(request, trace=with_accumulations(request.trace)))
    found = list(_lower(question, problem.least_feasible_bytes))
    if not found:
        return problem
    return Infeasible(
        "\n".join([str(problem), "Other means lower the least (--allow, or allow= of within):", *found]),
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=problem.least_feasible_bytes,
        counts_reserved=problem.counts_reserved,
    )


def _lower(question: _Question, least_bytes: int) -> Iterator[str]:
    """Per means that helps: the words of --allow, and the least with them."""
    until_s, given = time.monotonic() + PATIENCE_S, question.request.asked.allow
    allocated_bytes = question.allocated(given)
    others: list[Means] = [each for each in LOOKED_AT if each not in given]
    for means in others:
        wanted: tuple[Means, ...] = tuple(each for each in LOOKED_AT if each in given or each == means)
        if time.monotonic() > until_s or not question.shows(means):
            continue
        if _less(question.allocated(wanted), allocated_bytes) and _less(least := question.least(wanted), least_bytes):
            yield f"  with {','.join(wanted)} it is {format_bytes(least)} ({least} bytes)"


def _less(one_bytes: int, other_bytes: int) -> bool:
    return one_bytes < other_bytes - other_bytes // WORTH


def restricted(trace: Trace, means: Collection[str]) -> Trace:
    """A trace in which a run has control only around what it may move."""
    wanted = {"accumulation": "gradient" in means, "optimizer": "state" in means}
    return replace(trace, parts=tuple(part for part in trace.parts if wanted[part.kind]))


def with_accumulations(trace: Trace) -> Trace:
    """A trace of a run that moved no gradients, with the places at which it could have; as it is without parts."""
    if not trace.parts or any(part.kind == "accumulation" for part in trace.parts):
        return trace
    parts = sorted([*trace.parts, *_accumulations(trace)], key=lambda part: (part.first_op, part.end_op))
    return replace(trace, parts=tuple(parts))


def _accumulations(trace: Trace) -> Iterator[Part]:
    """Directly after the op of the last step's backward that makes it, a gradient is written."""
    first_op = last_step(trace).first_op
    for op, storage, size_bytes in trace.events:
        is_gradient = size_bytes > 0 and trace.storages[storage].category == "gradient"
        if is_gradient and op >= first_op and trace.ops[op].phase == "backward":
            yield Part(first_op=op + 1, end_op=op + 1, storages=(storage,), kind="accumulation")


@final
@dataclass(frozen=True, slots=True)
class _Question:
    """A step that was refused, to be planned with other means."""

    request: CourseRequest

    def shows(self, means: Means) -> bool:
        """Whether the trace says where a run would have control."""
        if means not in ("state", "gradient"):
            return True
        return any((part.kind == "accumulation") is (means == "gradient") for part in self.request.trace.parts)

    def allocated(self, means: Collection[Means]) -> int:
        """The least allocated bytes with these means."""
        return least_allocated(self._with(means))

    def least(self, means: Collection[Means]) -> int:
        """The least budget that plans with these means meet."""
        try:
            course_within(self._with(means))
        except Infeasible as problem:
            return problem.least_feasible_bytes
        return 1

    def _with(self, means: Collection[Means]) -> CourseRequest:
        """What was refused, for next to no bytes, with these means."""
        asked = replace(self.request.asked, allow=tuple(means))
        shown, budget = restricted(self.request.trace, means), self.request.budget.on_device(1)
        everywhere = range(len(shown.ops) + 1)
        return replace(self.request, trace=shown, budget=budget, asked=asked, judge=any_recompute, clear=everywhere)
