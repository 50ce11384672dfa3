"""Why no plan meets a budget: the least one that can be met, and what holds the bytes there."""

from __future__ import annotations

import numpy as np

from elbowroom.errors import Infeasible
from elbowroom.plan import Plan
from elbowroom.planners.problem import Problem, as_plan, moves_on_demand, peak_of
from elbowroom.step.last_step import Ints, LastStep, allocated_at, op_label, peak_point, storage_label
from elbowroom.step.least_size import least_size
from elbowroom.step.moves import Moves, need
from elbowroom.trace import Category
from elbowroom.units import format_bytes

LARGEST = 3


def fitting(problem: Problem, planner: str, moves: Moves) -> Plan:
    """The plan of a planner that does not look at the budget, if it meets the budget all the same.

    Raises:
        Infeasible: it does not; the least feasible budget is what these moves need.
    """
    if peak_of(problem.step, moves) > problem.budget_bytes:
        raise infeasible(problem, planner, moves.n, moves)
    return as_plan(problem, planner, moves)


def infeasible(problem: Problem, planner: str, swapped: Ints | None, moves: Moves | None = None) -> Infeasible:
    """The error for a budget that a planner cannot meet.

    Args:
        problem: what was asked.
        planner: its name.
        swapped: the saves it would swap at most; None for a planner that swaps nothing.
        moves: its swaps with the least it can meet; None where each may come back on demand.
    """
    step = problem.step
    n = np.zeros(0, np.int64) if swapped is None else swapped
    least_moves = moves_on_demand(step, n) if moves is None else moves
    needed = need(step, least_moves)
    least, point = int(needed.max()), peak_point(step, needed)
    held = _held(*problem.whole(least_moves), point)
    by_category: dict[Category, int] = {}
    for storage in held:
        what = step.trace.storages[storage]
        by_category[what.category] = by_category.get(what.category, 0) + int(step.storage_bytes[storage])
    sums = sorted(by_category.items(), key=lambda entry: (-entry[1], entry[0]))
    largest = sorted(held, key=lambda storage: (-step.trace.storages[storage].size_bytes, storage))[:LARGEST]
    return Infeasible(
        f"budget: given {_bytes(problem.budget_bytes)}; the least that {planner!r} can meet is {_bytes(least)}. "
        f"So much is held at {op_label(step.trace, step.op_at(point))}: "
        f"{', '.join(f'{format_bytes(size)} {category}' for category, size in sums)}. "
        f"The largest: {'; '.join(storage_label(step.trace, storage) for storage in largest)}. "
        f"{_remedy(problem, swapped) if moves is None else _otherwise(problem, planner, moves)}",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=least,
    )


def reserves_more(problem: Problem, planner: str, reserved_bytes: int) -> Infeasible:
    """The error for a budget that allocated bytes could be planned into, but not what the allocator reserves for them.

    Args:
        problem: what was asked.
        planner: its name.
        reserved_bytes: what the plan that reserves least of those tried reserves.
    """
    expandable = "expandable_segments" in problem.machine.allocator
    settings = "" if expandable else "set PYTORCH_ALLOC_CONF=expandable_segments:True, which reserves less; "
    return Infeasible(
        f"budget: given {_bytes(problem.budget_bytes)}; the least that the allocator of machine "
        f"{problem.machine.name!r} reserves for a plan of {planner!r} is {_bytes(reserved_bytes)}, as blocks that were "
        f"freed do not fit those that come. Give at least that; {settings}or make the batch or the input smaller.",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=reserved_bytes,
        counts_reserved=True,
    )


def in_reserved_bytes(problem: Problem, found: Infeasible, reserved_bytes: int) -> Infeasible:
    """An error about allocated bytes, with the budget that the allocator needs for them."""
    return Infeasible(
        f"{found} These are allocated bytes; the allocator of machine {problem.machine.name!r} reserves "
        f"{format_bytes(reserved_bytes)} ({reserved_bytes} bytes) for that plan: give at least so much.",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=reserved_bytes,
        counts_reserved=True,
    )


def followed(found: Infeasible, least_bytes: int) -> Infeasible:
    """An error whose budget is too small for the least size that follows it, with one that is enough for its own."""
    return Infeasible(
        f"{found} But the least size of what may move follows the budget: {_bytes(least_bytes)} is met, where storages "
        f"of {format_bytes(least_size(least_bytes))} or more may move; give that, or a least size (--min-size, "
        "min_size).",
        budget_bytes=found.budget_bytes,
        least_feasible_bytes=least_bytes,
        counts_reserved=found.counts_reserved,
    )


def _held(step: LastStep, moves: Moves, point: int) -> list[int]:
    """Storages on the device at a point under some swaps."""
    begin, end = step.window(moves.n, moves.back)
    inside = np.where(moves.wraps, (begin <= point) | (point < end), (begin <= point) & (point < end))
    away = set(step.storage_of(moves.n[inside]).tolist())
    for rebuild in moves.rebuilds:
        away |= set(step.storage_of(rebuild.n[(rebuild.begin <= point) & (point < rebuild.end)]).tolist())
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


def _otherwise(problem: Problem, planner: str, moves: Moves) -> str:
    return (
        f"{planner!r} as it was asked swaps {len(moves.n)} of {len(problem.step.saves)} saved storages and recomputes "
        f"{sum(len(rebuild.n) for rebuild in moves.rebuilds)}: give at least that budget or other options, or take "
        "another planner."
    )


def _bytes(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes} bytes)"
