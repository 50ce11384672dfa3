"""What the caching allocator reserves over the last step of a trace, kept as it is or changed by a plan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from elbowroom.allocator.replay import Event, replay
from elbowroom.lifetimes import SCRATCH, Ints, LastStep, listed
from elbowroom.moves import Moves
from elbowroom.rebuilds import Beat

LEAVES, COMES, RUNS = range(3)
"""What happens at a point, in this order: a storage leaves, something is allocated or freed, a recipe runs."""


class Reserved(NamedTuple):
    """Reserved bytes.

    Attributes:
        level: per point, once its recipes have run.
        before: per rebuild, when its recipe starts.
        beats: while the recipes run.
    """

    level: Ints
    before: list[int]
    beats: list[Beat]


class _Due(NamedTuple):
    """One event of the allocator at a point; `run` is the (rebuild, turn of its recipe) that makes it."""

    point: int
    order: int
    event: Event
    run: tuple[int, int] = (-1, -1)


def reserved_at(
    step: LastStep, moves: Moves, away: tuple[Ints, Ints, Ints], settings: str, *, as_recorded: bool
) -> Reserved:
    """Reserved bytes over the last step, on a device without a limit.

    As recorded, all events of the trace are replayed, so that the step finds the cache as the steps before it left it.
    Otherwise the step begins with what came before the first op and the storages that are live then: the steps before
    it in the trace did not follow the plan, and would leave a cache that the plan never has.

    Args:
        step: the last step.
        moves: what is swapped and rebuilt.
        away: (move, begin, end): points [begin, end) at which the bytes of moves are not on the device.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
        as_recorded: the plan changes nothing.
    """
    before = _before(step, as_recorded)
    due = sorted(_inside(step, moves, away), key=lambda each: each[:2])
    done = replay([*before, *(each.event for each in due)], settings)
    levels = np.concatenate([np.zeros(1, np.int64), done.reserved_bytes])[len(before) :]
    points = np.array([each.point for each in due], np.int64)
    level = levels[np.searchsorted(points, np.arange(len(step.level)), side="right")]
    return Reserved(level, *_runs(step, moves, due, levels))


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


def _before(step: LastStep, everything: bool) -> list[Event]:
    """Events before the step: all of them, or those before the first op and what then leads to its live storages."""
    early = [event for event in step.trace.events if event.op < step.first_op]
    at_first = {event.storage for event in early if event.op < 0}
    return [
        ("alloc", storage, size) if size > 0 else ("free", storage)
        for _, storage, size in early
        if everything or storage in at_first or step.gone[storage] > 0
    ]


def _inside(step: LastStep, moves: Moves, left: tuple[Ints, Ints, Ints]) -> Iterator[_Due]:
    """The step's own events and what the moves add."""
    away: set[int] = set()
    windows = [(step.storage_of(moves.n[left[0]]), left[1], left[2])]
    windows += [(step.storage_of(rebuild.n), rebuild.begin, rebuild.end) for rebuild in moves.rebuilds]
    for w, columns in enumerate(windows):
        for storage, begin, end in zip(*map(listed, columns), strict=True):
            if begin < end:
                yield _Due(begin, LEAVES, ("free", storage))
                if end >= step.gone[storage]:
                    away.add(storage)
                elif w == 0:
                    yield _Due(end, COMES, ("alloc", storage, int(step.storage_bytes[storage])))
    yield from _recipes(step, moves)
    yield from (due for op in range(step.first_op, step.end_op) for due in _recorded(step, op, away))


def _recorded(step: LastStep, op: int, away: set[int]) -> Iterator[_Due]:
    """What an op of the step allocates and frees, but for the frees of what is away then."""
    for storage, size in step.events_of(op):
        if storage == SCRATCH:
            event: Event = ("alloc", (SCRATCH, op), size) if size > 0 else ("free", (SCRATCH, op))
            yield _Due(int(step.point_of[op - step.first_op]) + step.scratch[op][0], COMES, event)
        elif size > 0:
            yield _Due(int(step.born[storage]), COMES, ("alloc", storage, size))
        elif storage not in away:
            yield _Due(int(step.gone[storage]), COMES, ("free", storage))


def _recipes(step: LastStep, moves: Moves) -> Iterator[_Due]:
    """What the recipes allocate and free."""
    for r, rebuild in enumerate(moves.rebuilds):
        point = int(step.point_of[rebuild.position - step.first_op])
        storages = step.storage_of(rebuild.n)
        stay = set(storages[step.gone[storages] > point].tolist())
        for turn, storage, size in rebuild.changes:
            key = storage if storage in stay else (r, storage)
            yield _Due(point, RUNS, ("alloc", key, size) if size > 0 else ("free", key), (r, turn))
