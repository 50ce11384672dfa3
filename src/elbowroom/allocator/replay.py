"""Replay: put the events of a training through the device's caching allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Literal, get_args

from elbowroom.allocator.checking import check_form
from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.settings import AllocatorSettings, parse_settings
from elbowroom.allocator.statistics import Replay
from elbowroom.errors import UsageError
from elbowroom.files.field_rules import MAX_INT, shown

Event = tuple[Any, ...]
"""("alloc", key, bytes[, stream]), ("free", key), ("record_stream", key, stream), ("synchronize",) or
("empty_cache",)."""

EventsDone = Literal["at once", "at synchronize"]
"""When the work of other streams on a freed block is done: before the next allocation, or not before a synchronize."""


def replay(
    events: Iterable[Event],
    settings: str | AllocatorSettings = "",
    capacity_bytes: int | None = None,
    *,
    events_done: EventsDone = "at once",
    allowed_bytes: int | None = None,
    unlimited: int = 0,
) -> Replay:
    """Compute what PyTorch's caching allocator holds after each event.

    >>> done = replay([("alloc", "w", 3_000_000), ("alloc", "x", 100), ("free", "w")])
    >>> done.allocated_bytes.tolist(), done.reserved_bytes.tolist()
    ([3000320, 3000832, 512], [20971520, 23068672, 23068672])

    Args:
        events: allocations and frees in order, by any hashable key; a stream is a number, 0 the default one.
        settings: settings of the allocator, as in PYTORCH_ALLOC_CONF.
        capacity_bytes: memory of the device, less what other users and the context take; None for no limit.
        events_done: when other streams are done with blocks they were recorded on.
        allowed_bytes: the most that the allocator may reserve, as torch.cuda.set_per_process_memory_fraction sets it;
            None for no limit but the device's.
        unlimited: number of the first events that `allowed_bytes` does not limit: they lay out what is there.

    Returns:
        The statistics, an entry per event. An allocation that runs out of memory allocates nothing: the replay goes on,
        and the free of its key changes nothing.

    Raises:
        UsageError: an event, a setting or another argument is not allowed.

    Limits:
        See device_allocator.py. A request of 0 bytes is no allocation.
    """
    device = DeviceAllocator(as_settings(settings), checked_capacity(capacity_bytes), waits(events_done))
    events = iter(events)
    run(device, islice(events, unlimited))
    if allowed_bytes is not None:
        device.allowed_bytes = min(device.allowed_bytes, allowed_bytes)
    run(device, events)
    return Replay.of(device)


def run(device: DeviceAllocator, events: Iterable[Event]) -> None:
    """Put events through an allocator."""
    allocate, free = device.allocate, device.free
    event: object = None
    try:
        for event in events:
            what = event[0]
            if what == "alloc" and len(event) == 3:
                _, key, size = event
                allocate(key, size)
            elif what == "alloc":
                allocate(*event[1:])
            elif what == "free":
                _, key = event
                free(key)
            else:
                _other(device, *event)
    except (IndexError, TypeError, ValueError):
        check_form(event, len(device.log.blocks))
        raise


def _other(device: DeviceAllocator, what: str, *rest: Any) -> None:
    """Carry out a rare event; raise TypeError if no event has this name."""
    others: dict[str, Callable[..., None]] = {
        "record_stream": device.record_stream,
        "synchronize": device.synchronize,
        "empty_cache": device.empty_cache,
    }
    if what not in others:
        raise TypeError(what)
    others[what](*rest)


def as_settings(settings: str | AllocatorSettings) -> AllocatorSettings:
    """Return settings, read from text if need be."""
    return settings if isinstance(settings, AllocatorSettings) else parse_settings(settings)


def checked_capacity(capacity_bytes: int | None) -> int | None:
    """Return a capacity; raise UsageError if it is not allowed."""
    if capacity_bytes is not None and (type(capacity_bytes) is not int or not 0 <= capacity_bytes <= MAX_INT):
        raise UsageError(
            f"replay: given capacity_bytes={shown(capacity_bytes)}; allowed is an int from 0 to 2**63 - 1, or None for "
            "no limit; parse_bytes of elbowroom.units reads sizes such as 8GiB"
        )
    return capacity_bytes


def waits(events_done: EventsDone) -> bool:
    """Return whether other streams are done only at a synchronize."""
    if events_done not in get_args(EventsDone):
        raise UsageError(
            f"replay: given events_done={shown(events_done)}; allowed are 'at once' and 'at synchronize'; take one"
        )
    return events_done == "at synchronize"
