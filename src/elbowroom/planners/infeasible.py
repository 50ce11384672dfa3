"""Why no plan meets a budget: the least one that can be met, and what holds the bytes there."""

from __future__ import annotations

import numpy as np

from elbowroom.errors import Infeasible
from elbowroom.lifetimes import Ints, LastStep, allocated_at, op_label, peak_point, storage_label
from elbowroom.moves import need
from elbowroom.planners.problem import Problem, moves_on_demand
from elbowroom.trace import Category
from elbowroom.units import format_bytes

LARGEST = 3


def infeasible(problem: Problem, planner: str, swapped: Ints | None) -> Infeasible:
    """The error for a budget that a planner cannot meet.

    Args:
        problem: what was asked.
        planner: its name.
        swapped: the saves it would swap at most; None for a planner that swaps nothing.
    """
    step = problem.step
    n = np.zeros(0, np.int64) if swapped is None else swapped
    moves = moves_on_demand(step, n)
    needed = need(step, moves)
    least, point = int(needed.max()), peak_point(step, needed)
    held = _held(step, n, point)
    by_category: dict[Category, int] = {}
    for storage in held:
        what = step.trace.storages[storage]
        by_category[what.category] = by_category.get(what.category, 0) + what.size_bytes
    sums = sorted(by_category.items(), key=lambda entry: (-entry[1], entry[0]))
    largest = sorted(held, key=lambda storage: (-step.trace.storages[storage].size_bytes, storage))[:LARGEST]
    return Infeasible(
        f"budget: given {_bytes(problem.budget_bytes)}; the least that {planner!r} can meet is {_bytes(least)}. "
        f"So much is held at {op_label(step.trace, step.op_at(point))}: "
        f"{', '.join(f'{format_bytes(size)} {category}' for category, size in sums)}. "
        f"The largest: {'; '.join(storage_label(step.trace, storage) for storage in largest)}. "
        f"{_remedy(problem, swapped)}",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=least,
    )


def _held(step: LastStep, n: Ints, point: int) -> list[int]:
    """Storages on the device at a point when saves `n` are swapped and come back on demand."""
    begin, end = step.window(n, step.first_read[n])
    away = set(step.storage_of(n[(begin <= point) & (point < end)]).tolist())
    return [storage for storage in allocated_at(step, point).tolist() if storage not in away]


def _remedy(problem: Problem, swapped: Ints | None) -> str:
    smaller = "give at least that, or make the batch or the input smaller"
    if swapped is None:
        return f"Swap with planner 'swap_greedy', {smaller}."
    if problem.tier is None:
        return f"Machine {problem.machine.name!r} has no tier below its device to swap to: {smaller}."
    may_move = len(swapped)
    return (
        f"{may_move} of {len(problem.step.saves)} saved storages may move to {problem.tier} (those of "
        f"{format_bytes(max(1, problem.min_size_bytes))} or more, within {format_bytes(problem.tier_bytes)} there): "
        f"{smaller}."
    )


def _bytes(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes} bytes)"
