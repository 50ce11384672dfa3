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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elbowroom.allocator.replay import Event, Replay, replay
from elbowroom.lanes import NEVER, play
from elbowroom.lifetimes import Ints, LastStep, listed
from elbowroom.machine import Machine, TierName
from elbowroom.moves import Moves, in_order_of_need, need, waits

STEPS = 4
"""Equal steps until what is reserved grows no more, as far as was seen."""

FREE, ALLOC = range(2)
Due = tuple[int, int, int, int]
"""(point, FREE or ALLOC, place among those, storage)."""


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
    dues = sorted(_dues(step, moves, waiting))
    events = list(_before(step))
    play = _Play(step)
    points: list[int] = []
    for _ in range(steps):
        points = [-1] * len(events)
        for point, kind, _, storage in dues:
            happening = play.event(kind, storage)
            events += happening
            points += [point] * len(happening)
        events += play.next_step()
    after = np.searchsorted(np.array(points), np.arange(-1, len(step.level)), side="right").astype(np.int64)
    return _per_op(step, replay(events, settings), after)


def _per_op(step: LastStep, done: Replay, after: Ints) -> Cycle:
    """Maximum during each op and at the tick before it; so many events as `after[p]` come before point p is over."""
    starts = np.append(step.point_of[:-1], len(step.level))

    def most(values: Ints) -> Ints:
        edge = np.concatenate([np.zeros(1, np.int64), values])
        begin, end = after[starts[:-1]], after[starts[1:]]
        return np.array([edge[a : b + 1].max() for a, b in zip(listed(begin), listed(end), strict=True)], np.int64)

    return Cycle(allocated=most(done.allocated_bytes), reserved=most(done.reserved_bytes))


def _before(step: LastStep) -> Iterator[Event]:
    """What came before the first op, and what of the steps before the last one is live when it begins."""
    early = [event for event in step.trace.events if event.op < step.first_op]
    at_first = {event.storage for event in early if event.op < 0}
    for _, storage, size in early:
        if storage in at_first or step.gone[storage] > 0:
            yield ("alloc", (0, storage), size) if size > 0 else ("free", (0, storage))


def _dues(step: LastStep, moves: Moves, waiting: Mapping[int, int]) -> Iterator[Due]:
    """All that is allocated and freed in the step."""
    begin, end = away_points(step, moves, waiting)
    away: set[int] = set()
    storages = listed(step.storage_of(moves.n))
    place = {i: at for at, i in enumerate(in_order_of_need(step, moves))}
    for i, (storage, left, back) in enumerate(zip(storages, listed(begin), listed(end), strict=True)):
        if left < back:
            yield left, FREE, i, storage
            if back < step.gone[storage]:
                yield back, ALLOC, place[i], storage
            else:
                away.add(storage)
    for op, storage, size in step.trace.events:
        if step.first_op <= op < step.end_op:
            if size > 0:
                yield int(step.born[storage]), ALLOC, 0, storage
            elif storage not in away:
                yield int(step.gone[storage]), FREE, 0, storage


class _Play:
    """Names blocks: those that one step leaves are those that the next one finds, as far as their sizes agree."""

    def __init__(self, step: LastStep) -> None:
        self._sizes = [storage.size_bytes for storage in step.trace.storages]
        end = len(step.level)
        inside = [e for e in step.trace.events if step.first_op <= e.op < step.end_op]
        self._found = [e.storage for e in inside if e.size_bytes < 0 and step.born[e.storage] == 0]
        self._left = [e.storage for e in inside if e.size_bytes > 0 and step.gone[e.storage] == end]
        self._number = 0
        self._held: dict[int, tuple[int, int] | None] = {}

    def event(self, kind: int, storage: int) -> list[Event]:
        """The event of a storage in the step that is being played."""
        if kind == ALLOC:
            key = self._held[storage] = (self._number, storage)
            return [("alloc", key, self._sizes[storage])]
        key = self._held.pop(storage, (0, storage))
        return [] if key is None else [("free", key)]

    def next_step(self) -> list[Event]:
        """Events at the end of a step: what no later step would free goes."""
        by_size: dict[int, list[tuple[int, int]]] = {}
        for storage in self._left:
            key = self._held.pop(storage, None)
            if key is not None:
                by_size.setdefault(self._sizes[storage], []).append(key)
        for storage in self._found:
            same = by_size.get(self._sizes[storage])
            self._held[storage] = same.pop(0) if same else None
        self._number += 1
        return [("free", key) for keys in by_size.values() for key in keys]
