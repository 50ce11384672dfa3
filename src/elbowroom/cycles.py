"""What a caching allocator holds while a run follows a plan, step after step.

Computes: allocated and reserved bytes during each op of the last step of a trace, once so many equal steps were played
that what the first of them left in the cache counts. Reference: the rules of the runtime (Note: [Streams] in
runtime/host.py): a storage leaves at the tick at which the schedule waits for its write, or stays where none does
before it is wanted back. So the order of all blocks, and with it what is reserved, follows from trace and plan alone.
Exact where the trace is that of the steps that run. Ignored: blocks of several streams; what the steps before the
plan left in the cache, as the cache is emptied where a plan begins.
Cost: `STEPS` replays of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elbowroom.allocator.of_trace import STEPS, played
from elbowroom.lanes import NEVER, play
from elbowroom.lifetimes import Ints, LastStep, listed
from elbowroom.machine import Machine, TierName
from elbowroom.moves import Moves, need, waits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cycle:
    """One step of many.

    Attributes:
        allocated: per op, bytes in blocks at most.
        reserved: per op, bytes that the allocator holds at most.
    """

    allocated: Ints
    reserved: Ints


def early_waits(step: LastStep, moves: Moves, tiers: Sequence[TierName], machine: Machine | None) -> dict[int, int]:
    """By position of a tick: how many writes must have ended there, in write order; never fewer than `waits` has.

    A storage that leaves only when its room is needed leaves a hole that the next block may not fit, so more is
    reserved. So it leaves at the first tick at which its write should have ended, by the rates of a machine; with no
    machine, at the first at which it is idle, even if compute has to wait.

    Args:
        step: the last step of a trace.
        moves: in write order.
        tiers: per move, where it goes.
        machine: gives the rates.
    """
    needed = need(step, moves)
    found = waits(step, moves, needed, int(needed.max()))
    ticks = step.ticks
    if machine is None:
        ready = step.idle_from[moves.n] + 1
    else:
        done = play(step, moves, machine, tiers)
        room_ns = done.room_ns[ticks - step.first_op]
        at = np.searchsorted(room_ns, done.out_end_ns, side="left")
        ready = np.append(ticks, step.end_op + 1)[at]
        ready = np.where(done.given_up | (done.out_start_ns == NEVER), step.saved_at[moves.n], ready)
    ready = np.maximum.accumulate(np.maximum(ready, step.saved_at[moves.n])) if len(ready) else ready
    counts = np.searchsorted(ready, ticks, side="right")
    least = 0
    for tick, count in zip(listed(ticks), listed(counts), strict=True):
        least = max(least, found.get(tick, 0), count)
        if least:
            found[tick] = least
    return found


def away_points(step: LastStep, moves: Moves, waiting: Mapping[int, int]) -> tuple[Ints, Ints]:
    """Per move, points [begin, end) at which its bytes are not on the device; empty where it never leaves.

    Args:
        step: the last step of a trace.
        moves: the swaps.
        waiting: by position of a tick, how many writes must have ended there.
    """
    ticks = sorted(waiting)
    counts = np.maximum.accumulate(np.array([waiting[tick] for tick in ticks], np.int64))
    which = np.searchsorted(counts, np.arange(len(moves.n)), "right")
    never = step.end_op + 1
    left = np.append(np.array(ticks, np.int64), never)[which]
    begin, end = step.window(moves.n, moves.back)
    leaves = left < np.where(step.returns[moves.n], moves.back, never)
    at = step.points(np.minimum(left, step.end_op))
    return np.where(leaves, np.minimum(np.maximum(begin, at), end), end), end


def cycle(step: LastStep, moves: Moves, waiting: Mapping[int, int], settings: str, steps: int = STEPS) -> Cycle:
    """The last of some equal steps under a plan.

    Args:
        step: the last step of a trace.
        moves: the swaps of the plan.
        waiting: by position of a tick, how many writes must have ended there.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
        steps: how many.
    """
    away = (np.arange(len(moves.n), dtype=np.int64), *away_points(step, moves, waiting))
    done = played(step, moves, away, settings, steps=steps)
    return Cycle(allocated=_per_op(step, done.allocated), reserved=_per_op(step, done.reserved))


def _per_op(step: LastStep, level: Ints) -> Ints:
    """Maximum during each op and at the tick before it."""
    return np.maximum.reduceat(level[: step.point_of[-1]], step.point_of[:-1])
