"""Remedies: what helps if no plan meets a budget. Each remedy that is named has been planned with.

There are three kinds: other means, a smaller least size of what may move, and a smaller batch or input. For the last,
the activations, inputs, temporaries and workspaces of the trace are scaled (`scaled`). Weights, gradients and optimizer
states keep their size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.planners.problem import Means
from elbowroom.planners.request import PlanRequest
from elbowroom.step.last_step import last_step
from elbowroom.trace import Category, Event, Part, Trace
from elbowroom.units import format_bytes, format_exact_bytes

LOOKED_AT: tuple[Means, ...] = ("swap", "recompute", "state", "gradient")
"""Means that change no number."""
WORTH = 50
"""A remedy is named if it lowers the least budget by 1/WORTH or more."""
SMALLER = 16
"""The least size that is tried is the present one divided by this."""
LEAST_SHARE = 1 / 8
"""The smallest batch or input that is looked at, as a share of the present one."""
SHARE_TRIES = 4
PATIENCE_S = 20.0
"""No further remedy is looked at after this time."""
SCALES: frozenset[Category] = frozenset({"input", "activation", "temporary", "workspace"})
"""What shrinks with the batch or the input."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refused:
    """Refused request, and how to plan it otherwise.

    Attributes:
        trace: the trace, with parts where optimizer states and gradients could move.
        asked: the knobs.
        plan: plans a trace with knobs for a budget of the device; raises Infeasible.
        allocated: returns the least allocated bytes of a trace with knobs, faster than `plan`, if there is such a way.
    """

    trace: Trace
    asked: PlanRequest
    plan: Callable[[Trace, PlanRequest, int], object]
    allocated: Callable[[Trace, PlanRequest], int] | None = None

    def least(self, trace: Trace, asked: PlanRequest) -> int:
        """Return the least budget that plans of a trace with these knobs meet."""
        try:
            self.plan(trace, asked, 1)
        except Infeasible as problem:
            return problem.least_feasible_bytes
        return 1

    def least_allocated(self, means: Collection[Means]) -> int | None:
        """Return the least allocated bytes with these means, if there is a quick way to tell."""
        return None if self.allocated is None else self.allocated(*_with(self, means))


def with_remedies(problem: Infeasible, refused: Refused) -> Infeasible:
    """Return an error that says what would help, and how much; the same error if nothing is found in time.

    Args:
        problem: the refusal.
        refused: the refused request.
    """
    refused = replace(refused, trace=with_accumulations(refused.trace))
    until_s = time.monotonic() + PATIENCE_S
    smaller = list(_smaller_input(problem, refused, until_s))  # looked at first: it helps where nothing else does
    found = [*_means(problem, refused, until_s), *_least_size(problem, refused, until_s), *smaller]
    return problem.reworded("\n".join([str(problem), *found])) if found else problem


def _means(problem: Infeasible, refused: Refused, until_s: float) -> list[str]:
    """Return lines with the value of --allow for each means that helps, and the least budget with it."""
    given = refused.asked.allow
    others: list[Means] = [each for each in LOOKED_AT if each not in given and _shows(refused.trace, each)]
    present_bytes, found = refused.least_allocated(given) if others else None, list[str]()
    for means in others:
        wanted: tuple[Means, ...] = tuple(each for each in LOOKED_AT if each in given or each == means)
        if time.monotonic() > until_s:
            break
        allocated_bytes = refused.least_allocated(wanted)
        if present_bytes is not None and allocated_bytes is not None and not _less(allocated_bytes, present_bytes):
            continue
        least_bytes = refused.least(*_with(refused, wanted))
        if _less(least_bytes, problem.least_feasible_bytes):
            found.append(f"  with {','.join(wanted)} it is {format_exact_bytes(least_bytes)}")
    return ["Other means lower the least (--allow, or allow= of within):", *found] if found else []


def _least_size(problem: Infeasible, refused: Refused, until_s: float) -> list[str]:
    """Return lines on a smaller least size of what may move, if it lowers the least budget."""
    size_bytes = refused.asked.min_size_bytes // SMALLER
    if not size_bytes or time.monotonic() > until_s:
        return []
    trace, asked = _with(refused, refused.asked.allow)
    least_bytes = refused.least(trace, replace(asked, min_size_bytes=size_bytes, follows=False))
    if not _less(least_bytes, problem.least_feasible_bytes):
        return []
    return [
        "A smaller least size of what may move lowers it (--min-size, min_size=):",
        f"  with {format_bytes(size_bytes)} it is {format_exact_bytes(least_bytes)}",
    ]


def _smaller_input(problem: Infeasible, refused: Refused, until_s: float) -> Iterator[str]:
    """Yield lines on the largest share of the batch or the input found to meet the budget, to hundredths."""
    budget_bytes, now_bytes = problem.budget_bytes, problem.least_feasible_bytes
    trace, asked = _with(refused, refused.asked.allow)
    if time.monotonic() > until_s or now_bytes <= budget_bytes:
        return
    small_bytes = refused.least(scaled(trace, LEAST_SHARE), asked)
    if small_bytes > budget_bytes:
        times = round(1 / LEAST_SHARE)
        yield f"With a batch or an input {times} times smaller it would still be {format_exact_bytes(small_bytes)}."
        return
    share = LEAST_SHARE + (1 - LEAST_SHARE) * (budget_bytes - small_bytes) / max(now_bytes - small_bytes, 1)
    for _ in range(SHARE_TRIES):
        share = math.floor(min(share, 0.99) * 100) / 100
        if share <= LEAST_SHARE or time.monotonic() > until_s:
            return
        if _meets(refused, scaled(trace, share), asked, budget_bytes):
            yield f"A batch or an input {share:.2f} times as large meets this budget,"
            yield "where activations, inputs and temporaries shrink with it."
            return
        share -= 0.05


def _meets(refused: Refused, trace: Trace, asked: PlanRequest, budget_bytes: int) -> bool:
    try:
        refused.plan(trace, asked, budget_bytes)
    except Infeasible:
        return False
    return True


def _less(one_bytes: int, other_bytes: int) -> bool:
    return one_bytes < other_bytes - other_bytes // WORTH


def _shows(trace: Trace, means: Means) -> bool:
    """Tell whether a trace has the parts in which a run could move these means."""
    if means not in ("state", "gradient"):
        return True
    return any(part.kind == ("accumulation" if means == "gradient" else "optimizer") for part in trace.parts)


def _with(refused: Refused, means: Collection[Means]) -> tuple[Trace, PlanRequest]:
    """Return the trace and the knobs with these means."""
    return restricted(refused.trace, means), replace(refused.asked, allow=tuple(means))


def scaled(trace: Trace, share: float) -> Trace:
    """Return the trace with activations, inputs, temporaries and workspaces scaled to a share of their size.

    What the optimizer's step allocates keeps its size, which depends on the weights.
    """
    in_optimizer = {
        storage for op, storage, size in trace.events if size > 0 and op >= 0 and trace.ops[op].phase == "optimizer"
    }
    sizes = [
        max(1, round(each.size_bytes * share)) if each.category in SCALES and s not in in_optimizer else each.size_bytes
        for s, each in enumerate(trace.storages)
    ]
    return replace(
        trace,
        ops=tuple(replace(op, choices=()) if op.choices else op for op in trace.ops),
        storages=tuple(replace(each, size_bytes=size) for each, size in zip(trace.storages, sizes, strict=True)),
        events=tuple(Event(op, s, sizes[s] if size > 0 else -sizes[s]) for op, s, size in trace.events),
        workspaces=(),
    )


def restricted(trace: Trace, means: Collection[str]) -> Trace:
    """Return the trace with only the parts that these means need."""
    gradients, parameters = "gradient" in means, "parameter" in means
    wanted = {"accumulation": gradients, "optimizer": "state" in means, "use": parameters}
    wanted["handed"] = gradients and parameters
    return replace(trace, parts=tuple(part for part in trace.parts if wanted[part.kind]))


def with_accumulations(trace: Trace) -> Trace:
    """Return a trace with the places at which gradients could have moved; the same trace if it has no parts."""
    if not trace.parts or any(part.kind == "accumulation" for part in trace.parts):
        return trace
    written = list(_accumulations(trace))
    gradients = {part.storages[0] for part in written}
    own = (_with_gradients(trace, part, gradients) if part.kind == "optimizer" else part for part in trace.parts)
    parts = sorted([*own, *written], key=lambda part: (part.first_op, part.end_op))
    return replace(trace, parts=tuple(parts))


def _with_gradients(trace: Trace, part: Part, gradients: set[int]) -> Part:
    """Return a part that also names the gradients that its ops read."""
    read = (storage for op in trace.ops[part.first_op : part.end_op] for storage in op.reads if storage in gradients)
    return replace(part, storages=tuple(dict.fromkeys((*part.storages, *read))))


def _accumulations(trace: Trace) -> Iterator[Part]:
    """Yield a part directly after each op of the last backward that makes a gradient: it is written there."""
    first_op = last_step(trace).first_op
    for op, storage, size_bytes in trace.events:
        is_gradient = size_bytes > 0 and trace.storages[storage].category == "gradient"
        if is_gradient and op >= first_op and trace.ops[op].phase == "backward":
            yield Part(first_op=op + 1, end_op=op + 1, storages=(storage,), kind="accumulation")
