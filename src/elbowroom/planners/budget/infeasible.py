"""Refusals of budgets: why no plan meets a budget, the least one that can be met, and what holds the bytes there."""

from __future__ import annotations

from collections import Counter

import numpy as np

from elbowroom.errors import Infeasible
from elbowroom.plan import Plan
from elbowroom.planners.problem import Problem, as_plan, moves_on_demand, peak_of
from elbowroom.step.last_step import Ints, LastStep, allocated_at, listed, peak_point
from elbowroom.step.least_size import least_size
from elbowroom.step.moves import Moves, need
from elbowroom.step.owners import owners_of
from elbowroom.trace import Category, Trace
from elbowroom.units import format_bytes, format_exact_bytes

LARGEST = 3
GIVE = "Give at least that"
WORDS: dict[Category, str] = {"parameter": "weights", "optimizer_state": "optimizer state"}
"""Usual names of categories, if they differ."""


def fitting(problem: Problem, planner: str, moves: Moves) -> Plan:
    """Return the plan of a planner that ignores the budget, if it meets the budget all the same.

    Raises:
        Infeasible: it does not; the least feasible budget is what these moves need.
    """
    if peak_of(problem.step, moves) > problem.budget_bytes:
        raise infeasible(problem, planner, moves.n, moves)
    return as_plan(problem, planner, moves)


def infeasible(problem: Problem, planner: str, swapped: Ints | None, moves: Moves | None = None) -> Infeasible:
    """Return the error for a budget that a planner cannot meet.

    Args:
        problem: the problem.
        planner: name of the planner.
        swapped: all saves that it could swap; None for a planner that swaps nothing.
        moves: its swaps that need the least; None if each may come back on demand.
    """
    step = problem.step
    n = np.zeros(0, np.int64) if swapped is None else swapped
    least_moves = moves_on_demand(step, n) if moves is None else moves
    needed = need(step, least_moves)
    least, point = int(needed.max()), peak_point(step, needed)
    whole, all_moves = problem.whole(least_moves)
    held = _held(whole, all_moves, point)
    largest = sorted(held, key=lambda storage: (-step.trace.storages[storage].size_bytes, storage))[:LARGEST]
    at = step.op_at(point)
    op = step.trace.ops[at]
    lines = [
        f"budget: given {format_exact_bytes(problem.budget_bytes)}.",
        f"The least that {planner!r} can meet is {format_exact_bytes(least)}{_of_everything(whole, least)}.",
        f"The most is then held in {op.module or 'no module'}{_at(step.trace, at)} ({op.phase}, {op.name}):",
        *(f"  {_named(step.trace, storage)}" for storage in largest),
        *_others(step, held, largest),
        *(_remedy(problem, swapped) if moves is None else _otherwise(problem, planner, moves)),
    ]
    return Infeasible("\n".join(lines), budget_bytes=problem.budget_bytes, least_feasible_bytes=least)


def _of_everything(step: LastStep, least_bytes: int) -> str:
    kept_bytes = int(step.slot_peak.max())
    return f",\n{least_bytes / kept_bytes:.2f} of the {format_bytes(kept_bytes)} that keeping everything takes"


def _at(trace: Trace, op: int) -> str:
    line = trace.source_line(op)
    return f", {line}" if line else ""


def _named(trace: Trace, storage: int) -> str:
    """Describe a storage in words, such as "activation of encoder.layer.3.mlp, 64.0 MiB"."""
    what, owners = trace.storages[storage], owners_of(trace)
    owner, line = owners.modules[storage], owners.lines.get(storage, "")
    of = f" of {owner}" if owner else f" at {line}" if line else ""
    return f"{WORDS.get(what.category, what.category)}{of}, {format_bytes(what.size_bytes)}"


def _others(step: LastStep, held: list[int], shown: list[int]) -> list[str]:
    """Return one line on all else that is held."""
    sums: Counter[str] = Counter()
    for storage in set(held) - set(shown):
        category = step.trace.storages[storage].category
        sums[WORDS.get(category, category)] += int(step.storage_bytes[storage])
    ranked = sorted(sums.items(), key=lambda entry: (-entry[1], entry[0]))[:LARGEST]
    return [f"  and {', '.join(f'{format_bytes(size)} of {what}' for what, size in ranked)}"] if ranked else []


def reserves_more(problem: Problem, planner: str, reserved_bytes: int) -> Infeasible:
    """Return the error for a budget that is enough for allocated bytes, but not for what the allocator reserves.

    Args:
        problem: the problem.
        planner: name of the planner.
        reserved_bytes: the least bytes that a tried plan reserves.
    """
    expandable = "expandable_segments" in problem.machine.allocator
    settings = "" if expandable else "Set PYTORCH_ALLOC_CONF=expandable_segments:True, which reserves less.\n"
    return Infeasible(
        f"budget: given {format_exact_bytes(problem.budget_bytes)}.\n"
        f"The least that the allocator of machine {problem.machine.name!r} reserves for a plan of {planner!r}\n"
        f"is {format_exact_bytes(reserved_bytes)}, as freed blocks do not fit those that come.\n"
        f"{settings}{GIVE}.",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=reserved_bytes,
        counts_reserved=True,
    )


def in_reserved_bytes(found: Infeasible, reserved_bytes: int) -> Infeasible:
    """Return an error about allocated bytes with the budget that the allocator needs for them."""
    message = with_reserved(str(found), reserved_bytes)
    return found.reworded(message, least_feasible_bytes=reserved_bytes, counts_reserved=True)


def with_reserved(said: str, reserved_bytes: int) -> str:
    """Return the lines of an error about allocated bytes, with what the allocator reserves for them."""
    note = f"These are allocated bytes; the allocator reserves {format_exact_bytes(reserved_bytes)} for them."
    lines = said.split("\n")
    at = next((n for n, line in enumerate(lines) if line.startswith(GIVE)), None)
    return "\n".join([*lines, note, f"{GIVE}."] if at is None else [*lines[:at], note, *lines[at:]])


def followed(found: Infeasible, least_bytes: int) -> Infeasible:
    """Return an error with a budget that can be met with the least size that follows it; that of `found` cannot."""
    return found.reworded(
        f"{found}\nThe least size of what may move follows the budget: {format_exact_bytes(least_bytes)} is met,\n"
        f"where storages of {format_bytes(least_size(least_bytes))} or more may move. Give that, or --min-size "
        "(min_size).",
        least_feasible_bytes=least_bytes,
    )


def _held(step: LastStep, moves: Moves, point: int) -> list[int]:
    """Return the storages on the device at a point, under some moves."""
    begin, end = step.window(moves.n, moves.back)
    inside = np.where(moves.wraps, (begin <= point) | (point < end), (begin <= point) & (point < end))
    n = moves.n[inside]
    away = set(listed(step.storage_away(n, np.full(len(n), point, np.int64))))
    for rebuild in moves.rebuilds:
        away |= set(step.storage_of(rebuild.n[(rebuild.begin <= point) & (point < rebuild.end)]).tolist())
    return [storage for storage in allocated_at(step, point).tolist() if storage not in away]


def _remedy(problem: Problem, swapped: Ints | None) -> list[str]:
    give = f"{GIVE}."
    if swapped is None:
        return ["Swap with planner 'swap_greedy'.", give]
    if problem.tier is None:
        return [f"Machine {problem.machine.name!r} has no tier below its device to swap to.", give]
    may_move, saves = len(swapped), len(problem.step.saves)
    least = format_bytes(max(1, problem.min_size_bytes))
    # The size of the tier is shown only if it is the reason that more storages stay.
    is_full = int(problem.step.size[: len(problem.step.saves)].sum()) > problem.tier_bytes
    within = f", within {format_bytes(problem.tier_bytes)} there" if is_full else ""
    return [
        f"{may_move} of {saves} saved storages may move to {problem.tier}: those of {least} or more{within}.",
        give,
    ]


def _otherwise(problem: Problem, planner: str, moves: Moves) -> list[str]:
    recomputed = sum(len(rebuild.n) for rebuild in moves.rebuilds)
    return [
        f"{planner!r} as it was asked swaps {len(moves.n)} of {len(problem.step.saves)} saved storages and recomputes "
        f"{recomputed}.",
        f"{GIVE} budget or other options, or take another planner.",
    ]
