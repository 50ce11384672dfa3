"""What the caching allocator holds over the last step of a trace, kept as it is or changed by a plan.

Note: [Steps of a plan]
What a step leaves in the cache is what the next one finds. So a step under a plan is the last of `STEPS` equal ones,
the first of which finds the storages that are live before it and not away, and an empty cache: the steps before it in
the trace did not follow the plan, and would leave a cache that the plan never has.

Note: [At the limit]
An allocator with a limit empties its cache before it fails: it waits for the device, gives every segment without a
block back to the driver and asks again. So what a plan reserves beyond its budget is no failure where the blocks
themselves fit, but costs the wait and the calls of the driver.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elbowroom.allocator.replay import Event, Replay, replay
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves, in_order_of_need
from elbowroom.step.rebuilds import Beat
from elbowroom.trace import Trace
from elbowroom.units import NONE

STEPS = 4
"""Equal steps until what is reserved grows no more, as far as was seen."""

LEAVES, EMPTIES, COMES, RUNS = range(4)
"""What happens at a point, in this order: a storage leaves, the cache is emptied, something is allocated or freed, a
recipe runs."""

Away = tuple[Ints, Ints, Ints]
"""(move, begin, end): points [begin, end) at which the bytes of moves are not on the device."""


class Driven(NamedTuple):
    """Where the allocator turns to the driver in a step.

    Attributes:
        point: of the allocation.
        asked_bytes: what it takes from the driver there.
        freed_bytes: what it gives back before, of its cache.
        freed_segments: in so many segments; 0 with expandable segments, which are not counted.
        empties: whether it waits for the device and empties its cache.
    """

    point: int
    asked_bytes: int
    freed_bytes: int
    freed_segments: int
    empties: bool


class ReservedCurve(NamedTuple):
    """Reserved bytes.

    Attributes:
        level: per point, once its recipes have run.
        before: per rebuild, when its recipe starts.
        beats: while the recipes run.
        driven: where the driver is asked in every such step.
    """

    level: Ints
    before: list[int]
    beats: list[Beat]
    driven: tuple[Driven, ...] = ()


class _Due(NamedTuple):
    """One event of the allocator at a point; `run` is the (rebuild, turn of its recipe) that makes it.

    Of what happens in the same order at a point, the smaller `place` comes first.
    """

    point: int
    order: int
    event: Event
    run: tuple[int, int] = (-1, -1)
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The last of some equal steps, through the allocator.

    Attributes:
        allocated, reserved: per point, bytes once all is done that happens there.
        most_reserved: bytes reserved at most in any of the steps.
        failed: an allocation did not fit.
    """

    allocated: Ints
    reserved: Ints
    most_reserved: int
    failed: bool
    _due: list[_Due]
    _levels: Ints
    _driven: tuple[Driven, ...]

    def heights(self, step: LastStep, moves: Moves) -> ReservedCurve:
        """What it reserved."""
        return ReservedCurve(self.reserved, *_runs(step, moves, self._due, self._levels), self._driven)


def reserved_at(
    step: LastStep, moves: Moves, away: Away, settings: str, *, as_recorded: bool, limit_bytes: int | None = None
) -> ReservedCurve:
    """Reserved bytes over the last step.

    As recorded, all events of the trace are replayed, so that the step finds the cache as the steps before it left it;
    otherwise see Note: [Steps of a plan].

    Args:
        step: the last step.
        moves: what is swapped and rebuilt.
        away: where the bytes of the moves are not on the device.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
        as_recorded: the plan changes nothing.
        limit_bytes: what the allocator may reserve; None for no limit. Where what is allocated does not fit there,
            what it would reserve without one.
    """
    found = (
        _recorded(step, moves, settings) if as_recorded else played(step, moves, away, settings).heights(step, moves)
    )
    most = max([int(found.level.max()), *(beat.most for beat in found.beats)])
    if limit_bytes is None or most <= limit_bytes:
        return found
    limited = played(step, moves, away, settings, limit_bytes=limit_bytes)
    return found if limited.failed else limited.heights(step, moves)


def _recorded(step: LastStep, moves: Moves, settings: str) -> ReservedCurve:
    """Reserved bytes of a step that keeps everything, after the steps before it."""
    before = _before(step, everything=True)
    none = step.point_of[:0]
    due = sorted([*_inside(step, moves, (none, none, none)), *_emptied(step)], key=_in_order)
    done = replay([*before, *(each.event for each in due)], settings)
    levels = np.concatenate([np.zeros(1, np.int64), done.reserved_bytes])[len(before) :]
    return ReservedCurve(_per_point(step, due, levels), [], [])


def played(
    step: LastStep,
    moves: Moves,
    away: Away,
    settings: str,
    *,
    limit_bytes: int | None = None,
    steps: int = STEPS,
    emptied: Collection[int] = (),
) -> Played:
    """The last of some equal steps under moves: see Note: [Steps of a plan].

    Args:
        step: the last step.
        moves: what is swapped and rebuilt.
        away: where the bytes of the moves are not on the device.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
        limit_bytes: what the allocator may reserve; None for no limit.
        steps: how many.
        emptied: positions at which the cache is given back to the driver.
    """
    empties = [_Due(int(step.point_of[at - step.first_op]), EMPTIES, ("empty_cache",)) for at in emptied]
    due = sorted([*_inside(step, moves, away), *empties, *_emptied(step)], key=_in_order)
    events, at, first = _of_steps(step, due, steps, set(listed(step.storage_of(moves.n[moves.wraps]))))
    done = replay(events, settings, limit_bytes)
    allocated, reserved = (
        np.concatenate([np.zeros(1, np.int64), values])[at] for values in (done.allocated_bytes, done.reserved_bytes)
    )
    return Played(
        allocated=_per_point(step, due, allocated),
        reserved=_per_point(step, due, reserved),
        most_reserved=int(done.reserved_bytes[first:].max(initial=0)),
        failed=bool(done.out_of_memory.any()),
        _due=due,
        _levels=reserved,
        _driven=tuple(_driven(done, due, at)),
    )


def _of_steps(step: LastStep, due: Sequence[_Due], steps: int, away: set[int]) -> tuple[list[Event], Ints, int]:
    """The events of equal steps; how many come before the last and up to each that is due in it; and before the first.

    The storages `away` are not there when the first begins.
    """
    events = [event for event in _before(step, everything=False) if event[1] not in away]
    blocks = _Blocks(step, events)
    events.append(("empty_cache",))
    first = len(events)
    ends: list[int] = []
    for _ in range(steps):
        ends = [len(events)]
        for each in due:
            events += blocks.event(each.event)
            ends.append(len(events))
        events += blocks.next_step()
    return events, np.array(ends, np.int64), first


def _in_order(due: _Due) -> tuple[int, int, int]:
    return due.point, due.order, due.place


def _per_point(step: LastStep, due: Sequence[_Due], levels: Ints) -> Ints:
    """What is held at each point, from what is held after so many of the events."""
    points = np.array([each.point for each in due], np.int64)
    return levels[np.searchsorted(points, np.arange(len(step.level)), side="right")]


def _driven(done: Replay, due: Sequence[_Due], at: Ints) -> Iterator[Driven]:
    """Where the driver was asked in the last step, whose k-th event that is due is event at[k] - 1."""
    change = np.diff(np.concatenate([np.zeros(1, np.int64), done.reserved_bytes]))
    retried = np.diff(np.concatenate([np.zeros(1, np.int64), done.retries])) > 0
    segments = np.diff(np.concatenate([np.zeros(1, np.int64), done.segments]))
    for each, end, begin in zip(due, listed(at[1:]), listed(at[:-1]), strict=True):
        if end == begin or not (retried[end - 1] or change[end - 1] > 0):
            continue
        # One event both gives back and takes: what it took alone is at least what was asked for.
        asked = int(each.event[2]) if retried[end - 1] else int(change[end - 1])
        freed = max(0, asked - int(change[end - 1])) if retried[end - 1] else 0
        count = max(0, 1 - int(segments[end - 1])) if retried[end - 1] else 0
        yield Driven(each.point, asked, freed, count, bool(retried[end - 1]))


class _Blocks:
    """Names blocks: those that one step leaves are those that the next one finds, as far as their sizes agree.

    Args:
        step: the step that is played.
        before: events before the first one, by storage.
    """

    def __init__(self, step: LastStep, before: Sequence[Event]) -> None:
        self._sizes = listed(step.storage_bytes)
        end = len(step.level)
        inside = [e for e in step.trace.events if step.first_op <= e.op < step.end_op]
        self._found = [e.storage for e in inside if e.size_bytes < 0 and step.born[e.storage] == 0]
        self._left = [e.storage for e in inside if e.size_bytes > 0 and step.gone[e.storage] == end]
        self._number = 1
        self._held: dict[int, int] = {}
        for what, storage, *_ in before:
            if what == "alloc":
                self._held[storage] = storage
            else:
                self._held.pop(storage, None)

    def event(self, event: Event) -> list[Event]:
        """The event of a storage in the step that is played; scratch memory and recipes have names of their own."""
        if len(event) == 1:
            return [event]
        what, key, *size = event
        if isinstance(key, tuple):
            return [event]
        if what == "alloc":
            name = self._held[key] = key + self._number * len(self._sizes)
            return [("alloc", name, *size)]
        name = self._held.pop(key, None)
        return [] if name is None else [("free", name)]

    def next_step(self) -> list[Event]:
        """Events at the end of a step: what no later step would free goes."""
        by_size: dict[int, list[int]] = {}
        for storage in self._left:
            name = self._held.pop(storage, None)
            if name is not None:
                by_size.setdefault(self._sizes[storage], []).append(name)
        for storage in self._found:
            same = by_size.get(self._sizes[storage])
            if same:
                self._held[storage] = same.pop(0)
        self._number += 1
        return [("free", name) for names in by_size.values() for name in names]


def _runs(step: LastStep, moves: Moves, due: list[_Due], levels: Ints) -> tuple[list[int], list[Beat]]:
    """Reserved bytes before each recipe and while it runs; `levels` are those after so many of the events."""
    before: list[int] = []
    beats: list[Beat] = []
    keys = [(each.point, each.order, *each.run) for each in due] if moves.rebuilds else []
    for r, rebuild in enumerate(moves.rebuilds):
        point = int(step.point_of[rebuild.position - step.first_op])
        before.append(int(levels[bisect_left(keys, (point, RUNS, r, 0))]))
        for turn in range(len(rebuild.recipe)):
            key = (point, RUNS, r, turn)
            start, stop = bisect_left(keys, key), bisect_right(keys, key)
            beats.append(Beat(r, turn, int(levels[start : stop + 1].max()), int(levels[stop])))
    return before, beats


def streams_of(trace: Trace) -> dict[int, tuple[int]]:
    """The stream of each storage that the default one did not allocate, as the end of its event."""
    return {storage: (stream,) for storage, stream in trace.streams}


def _before(step: LastStep, *, everything: bool) -> list[Event]:
    """Events before the step: all of them, or those before the first op and what then leads to its live storages."""
    early = [event for event in step.trace.events if event.op < step.first_op]
    at_first = {event.storage for event in early if event.op < 0}
    empties = set(step.trace.empties) if everything else set[int]()
    events: list[Event] = []
    on = streams_of(step.trace)
    for place, (_, storage, size) in enumerate(early):
        if place in empties:
            events.append(("empty_cache",))
        if everything or storage in at_first or step.gone[storage] > 0:
            events.append(("alloc", storage, size, *on.get(storage, ())) if size > 0 else ("free", storage))
    return [*events, ("empty_cache",)] if len(early) in empties else events


def _emptied(step: LastStep) -> Iterator[_Due]:
    """Where the training itself empties the cache in the step: once the op before is done."""
    events = step.trace.events
    for place in step.trace.empties:
        position = events[place - 1].op + 1 if place else 0
        if step.first_op < position <= step.end_op:
            yield _Due(int(step.point_of[position - step.first_op]), EMPTIES, ("empty_cache",))


def _inside(step: LastStep, moves: Moves, left: Away) -> Iterator[_Due]:
    """The step's own events and what the moves add."""
    away: set[int] = set()
    on = streams_of(step.trace)
    rank = {i: place for place, i in enumerate(in_order_of_need(step, moves))}
    places = [rank[i] for i in listed(left[0])]
    windows = [(step.storage_of(moves.n[left[0]]), left[1], left[2], np.array(places, np.int64))]
    windows += [(step.storage_of(each.n), each.begin, each.end, each.n) for each in moves.rebuilds]
    for w, columns in enumerate(windows):
        for storage, begin, end, place in zip(*map(listed, columns), strict=True):
            if begin < end:
                yield _Due(begin, LEAVES, ("free", storage))
                if end >= step.gone[storage]:
                    away.add(storage)
                elif w == 0:
                    event = ("alloc", storage, int(step.storage_bytes[storage]), *on.get(storage, ()))
                    yield _Due(end, COMES, event, place=place)
    yield from _recipes(step, moves)
    yield from (due for op in range(step.first_op, step.end_op) for due in _of_op(step, op, away, on))


def _of_op(step: LastStep, op: int, away: set[int], on: dict[int, tuple[int]]) -> Iterator[_Due]:
    """What an op of the step allocates and frees, but for the frees of what is away then."""
    for storage, size in step.events_of(op):
        if storage == NONE:
            event: Event = ("alloc", (NONE, op), size) if size > 0 else ("free", (NONE, op))
            yield _Due(int(step.point_of[op - step.first_op]) + step.scratch[op][0], COMES, event)
        elif size > 0:
            yield _Due(int(step.born[storage]), COMES, ("alloc", storage, size, *on.get(storage, ())))
        elif storage not in away:
            yield _Due(int(step.gone[storage]), COMES, ("free", storage))


def _recipes(step: LastStep, moves: Moves) -> Iterator[_Due]:
    """What the recipes allocate and free."""
    on = streams_of(step.trace)
    for r, rebuild in enumerate(moves.rebuilds):
        point = int(step.point_of[rebuild.position - step.first_op])
        storages = step.storage_of(rebuild.n)
        stay = set(storages[step.gone[storages] > point].tolist())
        for turn, storage, size in rebuild.changes:
            key = storage if storage in stay else (r, storage)
            event: Event = ("alloc", key, size, *on.get(storage, ())) if size > 0 else ("free", key)
            yield _Due(point, RUNS, event, (r, turn))
