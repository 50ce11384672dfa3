"""From the first step of a training to the steady one.

The first step makes the optimizer's state and the first gradients; in every later step they are there before it begins.
Whatever else the first step leaves behind (its loss, its output, its batch) is still there in the next one until the
next one replaces it, so it is counted a second time, as a `temporary` that was there before.
"""

from __future__ import annotations

from dataclasses import replace

from elbowroom.trace import Category, Event, Storage, Trace

PERSISTENT: tuple[Category, ...] = ("parameter", "buffer", "gradient", "optimizer_state")


def steady(trace: Trace) -> Trace:
    """A trace of one first step as a step in the middle of a training would be, with memory rounded up where unsure."""
    made = {event.storage: event.op for event in trace.events if event.size_bytes > 0}
    freed = {event.storage for event in trace.events if event.size_bytes < 0}
    left = [storage for storage, op in made.items() if op >= 0 and storage not in freed]
    lasting = {storage for storage in left if trace.storages[storage].category in PERSISTENT}
    leftovers = tuple(
        Storage(size_bytes=trace.storages[storage].size_bytes, category="temporary")
        for storage in left
        if storage not in lasting
    )
    first = len(trace.storages)
    before = [Event(-1, storage, trace.storages[storage].size_bytes) for storage in left if storage in lasting]
    before += [Event(-1, first + index, extra.size_bytes) for index, extra in enumerate(leftovers)]
    kept = [event for event in trace.events if not (event.storage in lasting and event.size_bytes > 0)]
    return replace(
        trace,
        storages=trace.storages + leftovers,
        events=tuple(sorted((*kept, *before), key=lambda event: event.op)),
    )
