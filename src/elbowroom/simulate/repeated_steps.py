"""Repeated steps: what a caching allocator holds while a run follows a plan, step after step.

Computes: allocated and reserved bytes during each op of the last step of a trace. Several equal steps are played first,
so that the blocks that they leave in the cache count. Reference: the rules of the runtime (Note: [Streams] in
engine/tiers/host.py): a storage leaves at the tick at which the schedule waits for its write. If no tick does before
it is wanted back, it stays. So the order of all blocks, and with it the reserved bytes, follows from trace and plan
alone. Exact if the trace is that of the steps that run. Ignored: blocks of several streams; what the steps before the
plan left in the cache, as the cache is emptied where a plan begins.
Cost: `STEPS` replays of the step, or `STEPS_LIMITED` below a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elbowroom.machine import Machine, TierName
from elbowroom.simulate.lanes import LATE, Play, play
from elbowroom.simulate.reserved_curve import STEPS, AllocatorUse, Away, equal_steps
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves, need, ticks_of, waits
from elbowroom.step.rebuilds import beats
from elbowroom.units import NONE

STEPS_LIMITED = 6
"""Equal steps to play below a limit: reserved bytes settle later there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cycle:
    """One step of many.

    Attributes:
        allocated: per op, the most bytes in blocks, recipes that run before it included.
        reserved: per op, the most bytes that the allocator holds.
        most_reserved: the most bytes that it holds in any of the steps.
        begin_allocated: bytes in blocks where the step begins.
    """

    allocated: Ints
    reserved: Ints
    most_reserved: int
    begin_allocated: int


def early_waits(
    step: LastStep, moves: Moves, tiers: Sequence[TierName], machine: Machine | None, *, before_idle: bool = False
) -> dict[int, int]:
    """Return, by position of a tick, how many writes must have ended there, in write order; never fewer than `waits`.

    A storage that leaves only when its room is needed leaves a hole. The next block may not fit it, so more is
    reserved. So a storage leaves at the first tick at which its write should have ended by the machine's rates. With no
    machine, it leaves at the first tick at which it is idle, even if compute has to wait. With `before_idle`, it leaves
    when its last user releases it, as its write has ended at the tick before that.

    Args:
        step: the last step of a trace.
        moves: the swaps, in write order.
        tiers: per move, where it goes.
        machine: gives the rates.
        before_idle: with no machine, wait at the last tick before a storage is idle, not at the first one after.
    """
    needed = need(step, moves)
    found = waits(step, moves, needed, int(needed.max()))
    ticks = ticks_of(step, moves)
    ready = _ready(step, moves, play(step, moves, machine, tiers) if machine else None, before_idle=before_idle)
    counts = [np.searchsorted(np.maximum.accumulate(each), ticks, side="right") for each in ready]
    # Counts below 0 are of the writes of the step before, the others of this step's.
    both = np.where(counts[0] < len(moves.n), counts[0] - len(moves.n), counts[1])
    least = none = -len(moves.n) if moves.wraps.any() else 0
    for tick, count in zip(listed(ticks), listed(both), strict=True):
        least = max(least, found.get(tick, least), count)
        if least > none:
            found[tick] = least
    return found


def _ready(step: LastStep, moves: Moves, done: Play | None, *, before_idle: bool) -> tuple[Ints, Ints]:
    """Return, for the writes of the step before and of this one, the position from which each should have ended."""
    earlier = np.full(len(moves.n), step.first_op, np.int64)
    if done is None:
        # Waiting for a later write waits for the earlier ones too; a storage that is still used stays alive.
        idle_from = np.minimum.accumulate(step.idle_from[moves.n][::-1])[::-1]
        if before_idle:
            ticks = ticks_of(step, moves)
            idle_from = ticks[np.maximum(np.searchsorted(ticks, idle_from, side="right") - 1, 0)]
        return earlier, np.maximum(idle_from, step.saved_at[moves.n])
    ticks = ticks_of(step, moves)
    room_ns, places = done.room_ns[ticks - step.first_op], np.append(ticks, step.end_op + 1)
    carried = places[np.searchsorted(room_ns, done.carried_end_ns, side="left")]
    carried = np.where(done.carried_end_ns == LATE, moves.back, carried)
    own = places[np.searchsorted(room_ns, done.out_end_ns, side="left")]
    unmade = (done.given_up & ~moves.wraps) | (done.out_start_ns == NONE)
    own = np.where(unmade, np.where(moves.wraps, step.end_op + 1, step.saved_at[moves.n]), own)
    return np.where(moves.wraps, carried, earlier), np.maximum(own, step.saved_at[moves.n])


def waits_at_saves(step: LastStep, moves: Moves) -> dict[int, int]:
    """Wait for each write at the tick at which its storage is saved; after that only other users keep the storage."""
    saved_at = step.saved_at[moves.n[moves.n < len(step.saves)]]
    return {tick: int(np.searchsorted(saved_at, tick, side="right")) for tick in listed(np.unique(saved_at))}


def away_while_waiting(step: LastStep, moves: Moves, waiting: Mapping[int, int]) -> Away:
    """Return arrays (move, begin, end): the bytes of a move are off the device at points [begin, end), never empty.

    Args:
        step: the last step of a trace.
        moves: the swaps.
        waiting: by position of a tick, how many writes must have ended there; below 0, writes of the step before.
    """
    ticks, count = sorted(waiting), len(moves.n)
    counts = np.maximum.accumulate(np.array([waiting[tick] for tick in ticks], np.int64))
    places, never = np.append(np.array(ticks, np.int64), step.end_op + 1), step.end_op + 1
    left = places[np.searchsorted(counts, np.arange(count), "right")]
    carried = places[np.searchsorted(counts, np.arange(count) - count, "right")]
    begin, end = step.window(moves.n, moves.back)
    leaves = left < np.where(step.returns[moves.n] & ~moves.wraps, moves.back, never)
    at = np.maximum(begin, step.points(np.minimum(left, step.end_op)))
    whole = len(step.level)
    first = np.where(leaves, at, whole), np.where(moves.wraps, whole, end)
    # A storage that left in one step is away when the next begins.
    again = np.where(carried < moves.back, step.points(np.minimum(carried, step.end_op)), whole)
    second = np.where(leaves, 0, again)[moves.wraps], end[moves.wraps]
    every = np.arange(count, dtype=np.int64)
    which = np.concatenate([every, every[moves.wraps]])
    begins, ends = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    some = begins < ends
    return which[some], begins[some], ends[some]


def cycle(
    step: LastStep,
    moves: Moves,
    waiting: Mapping[int, int],
    use: AllocatorUse,
    steps: int = 0,
    limit_bytes: int | None = None,
) -> Cycle:
    """Play equal steps under a plan and return the last of them.

    Args:
        step: the last step of a trace.
        moves: the swaps of the plan.
        waiting: by position of a tick, how many writes must have ended there.
        use: how the allocator is used.
        steps: number of steps; 0 for as many as it takes until reserved bytes grow no more.
        limit_bytes: the most that the allocator may reserve; None for no limit.
    """
    steps = steps or (STEPS if limit_bytes is None else STEPS_LIMITED)
    away = away_while_waiting(step, moves, waiting)
    done = equal_steps(step, moves, away, use, steps).played(limit_bytes)
    allocated = _per_op(step, done.allocated)
    for beat in beats(step, moves.rebuilds, done.allocated):
        place = min(moves.rebuilds[beat.rebuild].position, step.end_op - 1) - step.first_op
        allocated[place] = max(allocated[place], beat.most)
    return Cycle(
        allocated=allocated,
        reserved=_per_op(step, done.reserved),
        most_reserved=done.most_reserved,
        begin_allocated=int(done.allocated[0]),
    )


def fits_below(step: LastStep, moves: Moves, waiting: Mapping[int, int], use: AllocatorUse) -> Callable[[int], bool]:
    """Return a function of a limit of the allocator: whether the steps of a plan never run out of memory below it.

    At its limit the allocator gives its cache back to the driver and asks again. So blocks that lie in the way cost
    time there, and the training goes on as long as the blocks in use and the pages that they share fit.

    Args:
        step: the last step of a trace.
        moves: the swaps of the plan.
        waiting: by position of a tick, how many writes must have ended there.
        use: how the allocator is used.
    """
    return equal_steps(step, moves, away_while_waiting(step, moves, waiting), use, STEPS_LIMITED).fit


def _per_op(step: LastStep, level: Ints) -> Ints:
    """Return the maximum during each op and at the tick before it."""
    return np.maximum.reduceat(level[: step.point_of[-1]], step.point_of[:-1])
