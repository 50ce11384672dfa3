"""recompute_blocks: keep what lies between segments of forward, and compute each segment again before its backward.

Computes: forward cut into segments. What autograd saves in a segment and no later segment reads is dropped. All of it
is rebuilt at once before its first read. With "sqrt", there are as many segments as the square root of the number of
saved storages, with about equal bytes. One can also give their number. With "every", each block of the model is a
segment: an outermost member of a list of modules, with a number in its path, as one wraps it in torch.utils.checkpoint.
Reference: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174).
Optimal: "sqrt" for a chain of equal layers, up to a constant. Ignores: the budget (a plan that does not meet it is
refused), links, and that some storages cost more to rebuild than others.
Adapted: storages without a recipe that gives the same bits (recipes/) are kept.
Cost: linear in the ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise
from math import isqrt
from typing import Literal

import numpy as np

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.problem import Problem
from elbowroom.step.last_step import LastStep
from elbowroom.step.moves import moves_of
from elbowroom.step.rebuilds import rebuild_of
from elbowroom.step.recipes import blocks, stretches

NAME = "recompute_blocks"
Run = tuple[int, int]


def recompute_blocks(problem: Problem, *, segments: int | Literal["sqrt", "every"] = "sqrt") -> Plan:
    """Recompute by segments.

    Args:
        problem: the problem.
        segments: how many, or "sqrt" of the saved storages, or "every" block of the model.

    Raises:
        Infeasible: the plan holds more than the budget.
    """
    step, none = problem.step, np.zeros(0, np.int64)
    runs = [] if "recompute" not in problem.allow else list(_runs(problem, segments))
    found = sorted(blocks(step, runs, problem.min_size_bytes), key=lambda option: option.recompute.before_op)
    return fitting(
        problem, NAME, moves_of(step, none, none, rebuilds=tuple(rebuild_of(step, each.recompute) for each in found))
    )


def _runs(problem: Problem, segments: int | Literal["sqrt", "every"]) -> Iterator[Run]:
    """Yield the ops [first, end) of each segment, micro-batch by micro-batch."""
    for stretch in stretches(problem.step):
        first, end = stretch.first, stretch.end
        if segments == "every":
            yield from _modules(problem.step, first, end)
            continue
        saved = _saved(problem, first, end)
        count = isqrt(max(0, len(saved) - 1)) + 1 if segments == "sqrt" else max(1, segments)
        yield from pairwise(_cuts(saved, first, end, count))


def _saved(problem: Problem, first: int, end: int) -> list[Run]:
    """Return (op that makes it, bytes) of each storage that autograd saves of these ops, ascending."""
    step = problem.step
    made = [
        (step.op_at(int(step.born[save.storage])), int(size)) for save, size in zip(step.saves, step.size, strict=False)
    ]
    return sorted((op, size) for op, size in made if first <= op < end and size >= max(1, problem.min_size_bytes))


def _cuts(saved: list[Run], first: int, end: int, count: int) -> list[int]:
    """Return the borders of segments with about the same bytes each."""
    sums = list(accumulate(size for _, size in saved))
    inner = [saved[int(np.searchsorted(sums, sums[-1] * k / count))][0] + 1 for k in range(1, count)] if saved else []
    return sorted({first, end, *(cut for cut in inner if first < cut < end)})


def _modules(step: LastStep, first: int, end: int) -> Iterator[Run]:
    """Yield runs of ops in one block; a block is a path up to its first number."""
    for block, ops in groupby(range(first, end), lambda op: _block_of(step.trace.ops[op].module)):
        inside = list(ops)
        if block is not None:
            yield inside[0], inside[-1] + 1


def _block_of(module: str) -> str | None:
    names = module.split(".")
    at = next((i for i, name in enumerate(names) if name.isdecimal()), None)
    return None if at is None else ".".join(names[: at + 1])
