"""Moves: the swaps and rebuilds of a plan, the bytes they leave on the device, and the writes to wait for.

Note: [Waits that do not depend on timing]
need[j] is the bytes in slot j without swapped storages that are away. The peak P* is its maximum. A write
that has not ended leaves its storage on the device. So at a tick the runtime makes sure of this for each slot j up to
the next tick: need[j] + (idle storages whose writes may be unfinished) <= P*. Writes end in the order they were queued,
so one number per tick is enough: how many must have ended. It assumes that no later write has ended, and follows from
the plan alone. Slow links cost time, never bytes: the allocated peak is P* on every machine. A storage that is dropped
to be rebuilt leaves at once, and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elbowroom.machine import TierName
from elbowroom.plan import Plan
from elbowroom.step.last_step import Flags, Ints, LastStep, listed
from elbowroom.step.rebuilds import Rebuild, held_before, rebuilds_of_plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """The swaps of a plan as arrays, in write order, and its rebuilds.

    Attributes:
        n: the window: the n-th save, or after the saves one of a state or gradient (`LastStep.storage`).
        back: position before which it is back.
        size: bytes.
        begin: first slot in which it is away.
        end: one past the last slot in which it is away.
        wraps: whether it is away across the end of the step: from its first slot to the end, and from the start to
            its last one.
        rebuilds: the recomputes, in the order the recipes run.
    """

    n: Ints
    back: Ints
    size: Ints
    begin: Ints
    end: Ints
    wraps: Flags
    rebuilds: tuple[Rebuild, ...] = ()


def moves_of(step: LastStep, n: Ints, back: Ints, *, rebuilds: tuple[Rebuild, ...] = ()) -> Moves:
    """Make the moves that swap windows `n`, each back before the position at its index of `back`, and the rebuilds."""
    order = np.lexsort((n, step.saved_at[n]))
    n, back = n[order], back[order]
    begin, end = step.window(n, back)
    return Moves(
        n=n,
        back=back,
        size=step.size[n],
        begin=step.slots(begin),
        end=step.slots(end),
        wraps=step.wraps(n, back),
        rebuilds=rebuilds,
    )


def moves_of_plan(step: LastStep, plan: Plan) -> Moves:
    """Return the moves of a plan that has passed `check`."""
    n = np.array(step.windows_of((swap.storage, swap.out_after_op) for swap in plan.swaps), dtype=np.int64)
    back = np.array([swap.back_before_op for swap in plan.swaps], dtype=np.int64)
    return moves_of(step, n, back, rebuilds=rebuilds_of_plan(step, plan))


def tiers_of_plan(step: LastStep, plan: Plan, moves: Moves) -> tuple[TierName, ...]:
    """Return the tier to which each move of a plan goes."""
    windows = step.windows_of((swap.storage, swap.out_after_op) for swap in plan.swaps)
    tier_of: dict[int | None, TierName] = {n: swap.tier for n, swap in zip(windows, plan.swaps, strict=True)}
    return tuple(tier_of[n] for n in listed(moves.n))


def each_once(step: LastStep, n: Ints) -> Flags:
    """Return which windows are the first of their storage: a parameter has several, and one place on a lower tier."""
    first = np.zeros(len(n), np.bool_)
    first[np.unique(step.storage_of(n), return_index=True)[1]] = True
    return first


def windows_by_storage(step: LastStep, moves: Moves) -> dict[int, list[tuple[int, int]]]:
    """Return the windows (begin, end) of each storage that is swapped, in points: see `is_away`."""
    found: dict[int, list[tuple[int, int]]] = {}
    begin, end = step.window(moves.n, moves.back)
    for storage, *window in zip(*map(listed, (step.storage_of(moves.n), begin, end)), strict=True):
        found.setdefault(storage, []).append((window[0], window[1]))
    return found


def is_away(point: int, begin: int, end: int) -> bool:
    """Return whether a point lies in a window; one that ends before it begins goes on across the end of the step."""
    return begin <= point < end or (end < begin and not end <= point < begin)


def need(step: LastStep, moves: Moves) -> Ints:
    """Return the most allocated bytes per slot, recipes included, if every swapped storage is away in its window."""
    needed = step.slot_peak - _away(step, moves)
    if not moves.rebuilds:
        return needed
    dropped = np.zeros(len(step.borders) + 1, np.int64)
    for rebuild in moves.rebuilds:
        np.add.at(dropped, step.slots(rebuild.begin), step.size[rebuild.n])
        np.subtract.at(dropped, step.slots(rebuild.end), step.size[rebuild.n])
    gone = np.cumsum(dropped[:-1])
    needed -= gone
    slots = step.slots(step.points(np.array([rebuild.position for rebuild in moves.rebuilds], np.int64)))
    level = step.level.copy()
    level[step.borders[slots]] -= (_away(step, moves) + gone)[slots]
    for rebuild, slot, held in zip(
        moves.rebuilds, listed(slots), held_before(step, moves.rebuilds, level), strict=True
    ):
        needed[slot] = max(needed[slot], held + rebuild.peak_bytes)
    return needed


def _away(step: LastStep, moves: Moves) -> Ints:
    """Return per slot the bytes of the swapped storages that are away in it."""
    change = np.zeros(len(step.borders) + 1, np.int64)
    change[0] = moves.size[moves.wraps].sum()
    np.add.at(change, moves.begin, moves.size)
    np.subtract.at(change, moves.end, moves.size)
    return np.cumsum(change[:-1])


def peak_in_one_go(step: LastStep) -> int:
    """Return a bound on the bytes in optimizers' steps that are carried out whole, with all storages kept.

    The bound is the highest level at which a part begins, plus what each part adds to the level.
    """
    if not step.parts:
        return 0
    first, end = (step.points(np.array([getattr(p, name) for p in step.parts])) for name in ("first_op", "end_op"))
    begins, ends = listed(first), listed(end)
    extra = [int(step.level[a : b + 1].max() - step.level[a]) for a, b in zip(begins, ends, strict=True)]
    return int(step.level[first].max()) + sum(extra)


def tier_peak(step: LastStep, moves: Moves, on: list[bool] | None = None) -> int:
    """Return the most bytes that a lower tier holds.

    A save counts from the tick at which it is saved until it is freed; what outlives the step counts all the time.
    """
    chosen = np.array(on if on is not None else [True] * len(moves.n), dtype=np.bool_)
    chosen[chosen] = each_once(step, moves.n[chosen])
    n = moves.n[chosen]
    begin, end = step.points(step.saved_at[n]), step.gone[step.storage_of(n)]
    begin[n >= len(step.saves)] = 0
    change = np.zeros(len(step.level) + 1, np.int64)
    np.add.at(change, begin, moves.size[chosen])
    np.subtract.at(change, np.maximum(begin, end), moves.size[chosen])
    return int(np.cumsum(change).max())


def ticks_of(step: LastStep, moves: Moves) -> Ints:
    """Return where the runtime has control: the ticks of the step, and where moves of states start and end."""
    states = moves.n[moves.n >= len(step.saves)]
    if not len(states):
        return step.ticks
    again = states[step.returns[states]]
    back = moves.back[(moves.n >= len(step.saves)) & step.returns[moves.n]]
    own = (step.saved_at[states], step.first_read[again], back)
    return np.unique(np.concatenate([step.ticks, [step.first_op], *own]))


def waits(step: LastStep, moves: Moves, needed: Ints, limit_bytes: int) -> dict[int, int]:
    """Return, by position of a tick, how many writes must have ended there; only ticks at which it grows.

    A number below 0 counts the writes of the step before: -1 is all of them but the last.
    See Note: [Waits that do not depend on timing]. Cost: linear in the slots over the limit and in the moves.
    """
    # Slots that are within the limit without any swap need no write to have ended.
    tight, ticks = np.nonzero(needed + _away(step, moves) > limit_bytes)[0], ticks_of(step, moves)
    tick_of = np.searchsorted(step.slots(step.points(ticks)), tight, side="right") - 1
    begin, end, size, earlier = _in_two_steps(step, moves)
    entering, leaving = np.argsort(begin, kind="stable").tolist(), np.argsort(end, kind="stable").tolist()
    begin, end, size = begin.tolist(), end.tolist(), size.tolist()
    room = (limit_bytes - needed[tight]).tolist()
    done, pending, entered, left = 0, 0, 0, 0
    found: dict[int, int] = {}
    for slot, tick, free in zip(tight.tolist(), tick_of.tolist(), room, strict=True):
        while entered < len(begin) and begin[entering[entered]] <= slot:
            pending += size[entering[entered]] if entering[entered] >= done else 0
            entered += 1
        while left < len(end) and end[leaving[left]] <= slot:
            pending -= size[leaving[left]] if leaving[left] >= done else 0
            left += 1
        while pending > free:
            pending -= size[done] if begin[done] <= slot < end[done] else 0
            done += 1
            found[int(ticks[tick])] = done - earlier
    return found


def _in_two_steps(step: LastStep, moves: Moves) -> tuple[Ints, Ints, Ints, int]:
    """Return (begin, end, bytes, count) of the writes of the step before and of this one.

    A write that has not ended leaves its bytes on the device in slots [begin, end). The first `count` writes are those
    of the step before; it is 0 if no move wraps.
    """
    slots = len(step.borders)
    own_end = np.where(moves.wraps, slots, moves.end)
    if not moves.wraps.any():
        return moves.begin, own_end, moves.size, 0
    carried = np.where(moves.wraps, moves.end, 0)
    begin = np.concatenate([np.zeros_like(moves.begin), moves.begin])
    return begin, np.concatenate([carried, own_end]), np.concatenate([moves.size, moves.size]), len(moves.n)


def in_order_of_need(step: LastStep, moves: Moves) -> list[int]:
    """Return the indices of the moves in the order of first reads; among equal ones, the last saved comes first."""
    return np.lexsort((-moves.n, step.first_read[moves.n])).tolist()
