"""What the caching allocator reserves over the last step of a trace, kept as it is or moved by a plan."""

from __future__ import annotations

import numpy as np

from elbowroom.allocator.replay import Event, replay
from elbowroom.lifetimes import Ints, LastStep, listed
from elbowroom.moves import Moves


def reserved_at(step: LastStep, moves: Moves, begin: Ints, end: Ints, settings: str) -> Ints:
    """Reserved bytes per point of the last step, on a device without a limit.

    Without moves all events of the trace are replayed, so that the step finds the cache as the steps before it left
    it. With moves the step begins with what came before the first op and the storages that are live then: the steps
    before it in the trace were not moved, and would leave a cache that the plan never has.

    Args:
        step: the last step.
        moves: what is swapped.
        begin: per move, the point from which its bytes are not on the device.
        end: per move, the point from which they are again, or its storage is freed.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
    """
    before = _before(step, everything=not len(moves.n))
    inside = sorted(_inside(step, moves, begin, end), key=lambda entry: entry[:2])
    done = replay([*before, *(event for _, _, event in inside)], settings)
    levels = np.concatenate([np.zeros(1, np.int64), done.reserved_bytes])[len(before) :]
    points = np.array([point for point, _, _ in inside], np.int64)
    return levels[np.searchsorted(points, np.arange(len(step.level)), side="right")]


def _before(step: LastStep, everything: bool) -> list[Event]:
    """Events before the step: all of them, or those before the first op and what then leads to its live storages."""
    early = [event for event in step.trace.events if event.op < step.first_op]
    at_first = {event.storage for event in early if event.op < 0}
    return [
        ("alloc", storage, size) if size > 0 else ("free", storage)
        for _, storage, size in early
        if everything or storage in at_first or step.gone[storage] > 0
    ]


def _inside(step: LastStep, moves: Moves, begin: Ints, end: Ints) -> list[tuple[int, int, Event]]:
    """(point, 0 for a free and 1 for an alloc, event) of the step's own events and of what the moves add."""
    events: list[tuple[int, int, Event]] = []
    away: set[int] = set()
    storages = listed(step.storage_of(moves.n))
    for storage, size, left, back in zip(storages, listed(moves.size), listed(begin), listed(end), strict=True):
        if left < back:
            events.append((left, 0, ("free", storage)))
            if back < step.gone[storage]:
                events.append((back, 1, ("alloc", storage, size)))
            else:
                away.add(storage)
    for op, storage, size in step.trace.events:
        if not step.first_op <= op < step.end_op:
            continue
        if size > 0:
            events.append((int(step.born[storage]), 1, ("alloc", storage, size)))
        elif storage not in away:
            events.append((int(step.gone[storage]), 0, ("free", storage)))
    return events
