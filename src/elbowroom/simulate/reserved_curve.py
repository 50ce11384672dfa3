"""Reserved curve: what the caching allocator holds over the last step of a trace, as recorded or under a plan.

Note: [Steps of a plan]
The blocks that a step leaves in the cache are those that the next one finds. So a step under a plan is the last of
`STEPS` equal steps. The first of them begins with the storages that are live and not away, and with an empty cache. The
earlier steps of the trace are not replayed: they did not follow the plan, and would leave a cache that it never has.

Note: [The first of all steps]
A training that begins under a plan has no gradients and no optimizer states yet. Its first step makes the states in
the middle of its blocks, and those that stay keep the pages that they lie in. So its first step is played with each
made at its first use, after all that the script allocated and freed before its first forward.

Note: [At the limit]
An allocator with a limit empties its cache before it fails: it waits for the device, gives every segment without a
block back to the driver and asks again. So a plan that reserves more than its budget does not fail if the blocks
themselves fit. It costs the wait and the calls of the driver.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.replay import Event, Replay, replay, run
from elbowroom.allocator.settings import AllocatorSettings, parse_settings
from elbowroom.allocator.statistics import most_reserved
from elbowroom.simulate.step_events import DueEvent, StepBlocks, StepEvents, StepTemplate, in_order
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves, in_order_of_need
from elbowroom.step.rebuilds import Beat
from elbowroom.trace import Trace
from elbowroom.units import NONE

STEPS = 4
"""Equal steps to play: reserved bytes did not grow after that in any case that was looked at."""

LEAVES, EMPTIES, COMES, RUNS = range(4)
"""Kinds of events at a point, in this order: a storage leaves, the cache is emptied, a block is allocated or freed, a
recipe runs."""

EMPTY: Event = ("empty_cache",)
LOOK = 256
"""Events after which replays look for an allocation that failed."""

Away = tuple[Ints, Ints, Ints]
"""Arrays (move, begin, end): the bytes of a move are off the device at points [begin, end)."""


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """How the steps of a plan use the caching allocator.

    Attributes:
        settings: as in PYTORCH_ALLOC_CONF.
        from_first: whether the steps begin with the first of a training: Note: [The first of all steps].
    """

    settings: str
    from_first: bool = False


class Driven(NamedTuple):
    """A call of the allocator to the driver in a step.

    Attributes:
        point: point of the allocation.
        asked_bytes: bytes that the allocator takes from the driver there.
        freed_bytes: bytes of its cache that it gives back before.
        freed_segments: number of segments that it gives back; 0 with expandable segments, which are not counted.
        empties: whether it waits for the device and empties its cache.
    """

    point: int
    asked_bytes: int
    freed_bytes: int
    freed_segments: int
    empties: bool


class ReservedCurve(NamedTuple):
    """Reserved bytes over a step.

    Attributes:
        level: bytes per point, once its recipes have run.
        before: bytes per rebuild, when its recipe starts.
        beats: bytes while each op of a recipe runs.
        driven: the calls to the driver in every such step.
    """

    level: Ints
    before: list[int]
    beats: list[Beat]
    driven: tuple[Driven, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The last of some equal steps that were replayed through the allocator.

    Attributes:
        allocated, reserved: bytes per point, after all events there.
        most_reserved: the most bytes reserved in any of the steps.
    """

    allocated: Ints
    reserved: Ints
    most_reserved: int
    _due: list[DueEvent]
    _levels: Ints
    _driven: tuple[Driven, ...]

    def heights(self, step: LastStep, moves: Moves) -> ReservedCurve:
        """Return the reserved bytes of the step."""
        return ReservedCurve(self.reserved, *_runs(step, moves, self._due, self._levels), self._driven)


def reserved_at(
    step: LastStep, moves: Moves, away: Away, settings: str, *, as_recorded: bool, limit_bytes: int | None = None
) -> ReservedCurve:
    """Return the reserved bytes over the last step.

    With `as_recorded`, all events of the trace are replayed. So the step finds the cache that the steps before it left.
    Otherwise see Note: [Steps of a plan].

    Args:
        step: the last step.
        moves: what is swapped and rebuilt.
        away: where the bytes of the moves are not on the device.
        settings: settings of the allocator, as in PYTORCH_ALLOC_CONF.
        as_recorded: the plan changes nothing.
        limit_bytes: the most that the allocator may reserve; None for no limit. If the blocks do not fit there, the
            result is that without a limit.
    """
    recorded = _recorded(step, moves, settings) if as_recorded else None
    if recorded is not None and (limit_bytes is None or int(recorded.level.max()) <= limit_bytes):
        return recorded
    steps = equal_steps(step, moves, away, AllocatorUse(settings))
    limited = None if limit_bytes is None else steps.within(limit_bytes)
    if limited is not None:
        return limited.heights(step, moves)
    return recorded or steps.played().heights(step, moves)


def _recorded(step: LastStep, moves: Moves, settings: str) -> ReservedCurve:
    """Return the reserved bytes of a step that keeps everything, after the earlier steps of the trace."""
    before = _before(step, everything=True)
    none = step.point_of[:0]
    due = sorted([*_inside(step, moves, (none, none, none)), *_emptied(step)], key=in_order)
    done = replay([*before, *(each.event for each in due)], settings)
    levels = np.concatenate([np.zeros(1, np.int64), done.reserved_bytes])[len(before) :]
    return ReservedCurve(_per_point(step, due, levels), [], [])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EqualSteps:
    """Equal steps under moves, as the allocator meets them: see Note: [Steps of a plan].

    Attributes:
        step: the last step of the trace.
        settings: settings of the allocator.
        count: number of steps.
        before: events before the first step.
        due: what is due in each step.
        events: the events of each step.
    """

    step: LastStep
    settings: AllocatorSettings
    count: int
    before: list[Event]
    due: list[DueEvent]
    events: StepEvents

    def most_reserved(self, steps: int) -> int:
        """Return the most bytes reserved in some of the steps, without a limit."""
        found = self._replayed(None, steps)
        return most_reserved(found.device.log, found.begin)

    def played(self, limit_bytes: int | None = None) -> Played:
        """Return the last of the steps; where an allocation does not fit, the step goes on without it."""
        return self._read(self._replayed(limit_bytes, self.count))

    def within(self, limit_bytes: int) -> Played | None:
        """Return the last of the steps; None if they do not fit below a limit of the allocator."""
        found = self._replayed(limit_bytes, self.count, all_fit=True)
        return None if found.device.log.failed else self._read(found)

    def fit(self, limit_bytes: int) -> bool:
        """Whether the steps fit below a limit of the allocator."""
        return not self._replayed(limit_bytes, self.count, all_fit=True).device.log.failed

    def _replayed(self, limit_bytes: int | None, count: int, *, all_fit: bool = False) -> _ReplayedSteps:
        """Replay some steps, or fewer if they are equal; with `all_fit`, up to the first that runs out of memory."""
        device = DeviceAllocator(self.settings, None, wait_for_synchronize=False)
        run(device, self.before)
        begin, ends = len(self.before), np.zeros(0, np.int64)
        if limit_bytes is not None:
            device.allowed_bytes = min(device.allowed_bytes, limit_bytes)
            if all_fit and device.reserved_bytes > limit_bytes:
                device.log.failed.append(begin)
                return _ReplayedSteps(device, begin, ends)
        layout: _Layout | None = None
        for turn in range(count):
            made = self.events.of(turn)
            ends = len(device.log.blocks) + np.concatenate([np.zeros(1, np.int64), made.ends])
            _run(device, made.events, all_fit=all_fit)
            if all_fit and device.log.failed:
                break
            before, layout = layout, _layout(device, made.held)
            if turn and layout == before:
                break
        return _ReplayedSteps(device, begin, ends)

    def _read(self, found: _ReplayedSteps) -> Played:
        done = Replay.of(found.device)
        allocated, reserved = (
            np.concatenate([np.zeros(1, np.int64), values])[found.ends]
            for values in (done.allocated_bytes, done.reserved_bytes)
        )
        return Played(
            allocated=_per_point(self.step, self.due, allocated),
            reserved=_per_point(self.step, self.due, reserved),
            most_reserved=most_reserved(found.device.log, found.begin),
            _due=self.due,
            _levels=reserved,
            _driven=tuple(_driven(done, self.due, found.ends)),
        )


_Layout = tuple[object, ...]


def _layout(device: DeviceAllocator, held: Mapping[int, int]) -> _Layout | None:
    """Return where all blocks lie: a step that begins and ends with one layout is equal to all that follow.

    Where old free blocks are given back, the next step depends on more: then there is None.

    Args:
        device: the allocator.
        held: storage -> name of its block, for those that the next step finds.
    """
    if device.collects:
        return None
    blocks = ((storage, device.live.get(name)) for storage, name in held.items())
    lying = [(storage, block and (block.address, block.prev is None)) for storage, block in blocks]
    shelves = [
        (large, stream, {order: block.prev is None for order, block in shelf.blocks.items()}, shelf.unmapped_at())
        for large in (0, 1)
        for stream, shelf in device.shelves[large].items()
    ]
    return device.reserved_bytes, lying, shelves


def _run(device: DeviceAllocator, events: Sequence[Event], *, all_fit: bool) -> None:
    """Put the events of a step through an allocator; with `all_fit`, a few more than up to the first that fails."""
    look = LOOK if all_fit else max(1, len(events))
    for k in range(0, len(events), look):
        run(device, events[k : k + look])
        if all_fit and device.log.failed:
            return


class _ReplayedSteps(NamedTuple):
    """Equal steps that were replayed.

    Attributes:
        device: the allocator after them.
        begin: number of events before the first step.
        ends: number of events before the last step that was replayed, and then up to each event that is due in it.
    """

    device: DeviceAllocator
    begin: int
    ends: Ints


def equal_steps(step: LastStep, moves: Moves, away: Away, use: AllocatorUse, steps: int = STEPS) -> EqualSteps:
    """Return equal steps under moves.

    Args:
        step: the last step.
        moves: what is swapped and rebuilt.
        away: where the bytes of the moves are not on the device.
        use: how the allocator is used.
        steps: number of steps.
    """
    due = sorted([*_inside(step, moves, away), *_emptied(step)], key=in_order)
    wrapping = _away_before(step, moves, away)
    wrapping |= {old for new, old in step.replaced.items() if new in wrapping}
    late = _made_in_steps(step) if use.from_first else {}
    set_up_end = _set_up_end(step.trace) if use.from_first else 0
    before = _before(step, everything=False, set_up_end=set_up_end)
    before = [*(e for e in before if e != EMPTY and e[1] not in wrapping and e[1] not in late), EMPTY]
    made = [each for storage, each in late.items() if each is not None and storage not in wrapping]
    template = StepTemplate(step, due)
    first = StepTemplate(step, sorted([*made, *due], key=in_order)) if made else template
    return EqualSteps(
        step=step,
        settings=parse_settings(use.settings),
        count=steps,
        before=before,
        due=due,
        events=StepEvents(StepBlocks(step, before), first, template),
    )


def _away_before(step: LastStep, moves: Moves, away: Away) -> set[int]:
    """Return the storages of moves that are away as a step begins. One whose write is always given up never is."""
    leaves = np.isin(np.arange(len(moves.n)), away[0])
    return set(listed(step.storage_of(moves.n[moves.wraps & (leaves | ~step.returns[moves.n])])))


def _made_in_steps(step: LastStep) -> dict[int, DueEvent | None]:
    """Return the gradients and optimizer states that lie there as the step begins, each with where it is used first.

    That is None for a gradient that the step frees: the first step of all has none to free.
    """
    trace, first_op = step.trace, step.first_op
    inside = (e.storage for e in trace.events if 0 <= e.op < first_op and trace.ops[e.op].phase != "forward")
    found = {storage for storage in inside if step.born[storage] == 0 and step.gone[storage] > 0}
    late: dict[int, DueEvent | None] = {storage: None for storage in found if step.gone[storage] < len(step.level)}
    on = streams_of(trace)
    for op in range(first_op, step.end_op):
        for storage in found.intersection((*trace.ops[op].reads, *trace.ops[op].writes)).difference(late):
            event = ("alloc", storage, int(step.storage_bytes[storage]), *on.get(storage, ()))
            late[storage] = DueEvent(int(step.point_of[op - first_op]), COMES, event)
    return late


def _set_up_end(trace: Trace) -> int:
    """Return the op at which the first forward of a training begins: the first step has its set-up before it."""
    forwards = [
        next((op for op in range(*each) if trace.ops[op].phase != "forward"), each.end_op) - each.first_op
        for each in (trace.steps[0], trace.steps[-1])
    ]
    return trace.steps[0].first_op + max(0, forwards[0] - forwards[1])


def _per_point(step: LastStep, due: Sequence[DueEvent], levels: Ints) -> Ints:
    """Return the bytes at each point; levels[k] are the bytes after the first k events that are due."""
    points = np.array([each.point for each in due], np.int64)
    return levels[np.searchsorted(points, np.arange(len(step.level)), side="right")]


def _driven(done: Replay, due: Sequence[DueEvent], at: Ints) -> Iterator[Driven]:
    """Yield the calls to the driver in the last step; at[k] counts the events up to the k-th one that is due."""
    change = np.diff(np.concatenate([np.zeros(1, np.int64), done.reserved_bytes]))
    retried = np.diff(np.concatenate([np.zeros(1, np.int64), done.retries])) > 0
    segments = np.diff(np.concatenate([np.zeros(1, np.int64), done.segments]))
    for each, end, begin in zip(due, listed(at[1:]), listed(at[:-1]), strict=True):
        if end == begin or not (retried[end - 1] or change[end - 1] > 0):
            continue
        # Such an event gives back and takes in one: it took at least the bytes of the allocation.
        asked = int(each.event[2]) if retried[end - 1] else int(change[end - 1])
        freed = max(0, asked - int(change[end - 1])) if retried[end - 1] else 0
        count = max(0, 1 - int(segments[end - 1])) if retried[end - 1] else 0
        yield Driven(each.point, asked, freed, count, bool(retried[end - 1]))


def _runs(step: LastStep, moves: Moves, due: list[DueEvent], levels: Ints) -> tuple[list[int], list[Beat]]:
    """Return reserved bytes before each recipe and while it runs; levels[k] are those after the first k events."""
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
    """Return, for each storage that another than the default stream allocated, the stream as the end of its event."""
    return {storage: (stream,) for storage, stream in trace.streams}


@lru_cache(maxsize=4)
def _before(step: LastStep, *, everything: bool, set_up_end: int = 0) -> Sequence[Event]:
    """Return events before the step: all, or those of storages made before an op and of those live in the step."""
    early = [event for event in step.trace.events if event.op < step.first_op]
    at_first = {event.storage for event in early if event.op < set_up_end}
    empties = set(step.trace.empties) if everything else set[int]()
    events: list[Event] = []
    on = streams_of(step.trace)
    for place, (_, storage, size) in enumerate(early):
        if place in empties:
            events.append(EMPTY)
        if everything or storage in at_first or step.gone[storage] > 0:
            events.append(("alloc", storage, size, *on.get(storage, ())) if size > 0 else ("free", storage))
    return [*events, EMPTY] if len(early) in empties else events


def _emptied(step: LastStep) -> Iterator[DueEvent]:
    """Yield the points at which the training itself empties the cache: after the op before them is done."""
    events = step.trace.events
    for place in step.trace.empties:
        position = events[place - 1].op + 1 if place else 0
        if step.first_op < position <= step.end_op:
            yield DueEvent(int(step.point_of[position - step.first_op]), EMPTIES, EMPTY)


def _back_at(windows: tuple[Ints, Ints, Ints, Ints]) -> set[tuple[int, int]]:
    """Return the storages that are away more than once, each with the points at which it comes back."""
    storages = listed(windows[0])
    if len(set(storages)) == len(storages):
        return set()
    return {(storage, end) for storage, begin, end, _ in zip(*map(listed, windows), strict=True) if begin < end}


def _inside(step: LastStep, moves: Moves, left: Away) -> Iterator[DueEvent]:
    """Yield the step's own events and those that the moves add."""
    away: set[int] = set()
    on = streams_of(step.trace)
    rank = {i: place for place, i in enumerate(in_order_of_need(step, moves))}
    places = [rank[i] for i in listed(left[0])]
    windows = [(step.storage_away(moves.n[left[0]], left[1]), left[1], left[2], np.array(places, np.int64))]
    windows += [(step.storage_of(each.n), each.begin, each.end, each.n) for each in moves.rebuilds]
    back = _back_at(windows[0])
    for w, columns in enumerate(windows):
        for storage, begin, end, place in zip(*map(listed, columns), strict=True):
            if begin < end:
                if (storage, begin) in back:  # it is back for no longer than this point, and leaves once it is
                    yield DueEvent(begin, COMES, ("free", storage), place=len(rank))
                else:
                    yield DueEvent(begin, LEAVES, ("free", storage))
                if end >= step.gone[storage]:
                    away.add(storage)
                elif w == 0:
                    yield _comes(step, storage, end, place, on)
    for i in _back_first(step, moves, left):
        yield _comes(step, int(step.storage[moves.n[i]]), 0, rank[i], on)
    yield from _recipes(step, moves)
    yield from (due for due, freed in _own(step) if freed not in away)


def _comes(step: LastStep, storage: int, point: int, place: int, on: Mapping[int, tuple[int]]) -> DueEvent:
    """Return the event of a storage that comes back."""
    event = ("alloc", storage, int(step.storage_bytes[storage]), *on.get(storage, ()))
    return DueEvent(point, COMES, event, place=place)


def _back_first(step: LastStep, moves: Moves, left: Away) -> list[int]:
    """Return the moves that end where a step begins: no range says so, as it would be empty."""
    _, end = step.window(moves.n, moves.back)
    ends = moves.wraps & step.returns[moves.n] & (end == 0)
    return [i for i in listed(np.unique(left[0])) if ends[i]]


@lru_cache(maxsize=4)
def _own(step: LastStep) -> list[tuple[DueEvent, int]]:
    """Return what the ops of a step allocate and free, each with the storage that it frees, or NONE."""
    on = streams_of(step.trace)
    return [each for op in range(step.first_op, step.end_op) for each in _of_op(step, op, on)]


def _of_op(step: LastStep, op: int, on: dict[int, tuple[int]]) -> Iterator[tuple[DueEvent, int]]:
    """Yield what an op of the step allocates and frees, each with the storage that it frees, or NONE."""
    for storage, size in step.events_of(op):
        if storage == NONE:
            event: Event = ("alloc", (NONE, op), size) if size > 0 else ("free", (NONE, op))
            yield DueEvent(int(step.point_of[op - step.first_op]) + step.scratch[op][0], COMES, event), NONE
        elif size > 0:
            yield DueEvent(int(step.born[storage]), COMES, ("alloc", storage, size, *on.get(storage, ()))), NONE
        else:
            yield DueEvent(int(step.gone[storage]), COMES, ("free", storage)), storage


def _recipes(step: LastStep, moves: Moves) -> Iterator[DueEvent]:
    """Yield what the recipes allocate and free."""
    on = streams_of(step.trace)
    for r, rebuild in enumerate(moves.rebuilds):
        point = int(step.point_of[rebuild.position - step.first_op])
        storages = step.storage_of(rebuild.n)
        stay = set(storages[step.gone[storages] > point].tolist())
        for turn, storage, size in rebuild.changes:
            key = storage if storage in stay else (r, storage)
            event: Event = ("alloc", key, size, *on.get(storage, ())) if size > 0 else ("free", key)
            yield DueEvent(point, RUNS, event, (r, turn))
