"""Statistics of a replay after each event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.log import Log

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Figures of the allocator; one entry per event, taken after it.

    Attributes:
        allocated_bytes: bytes of blocks in use: requests rounded up, and tails too small to split off.
        reserved_bytes: bytes taken from the driver.
        active_bytes: allocated bytes, and those of freed blocks that another stream still uses.
        requested_bytes: requested bytes of the active blocks.
        segments: number of segments; 0 with expandable segments, which are not counted.
        retries: number of allocations so far that were tried again after the cache had been emptied.
        out_of_memory: whether the event is an allocation that failed.
    """

    allocated_bytes: Ints
    reserved_bytes: Ints
    active_bytes: Ints
    requested_bytes: Ints
    segments: Ints
    retries: Ints
    out_of_memory: Flags
    _device: DeviceAllocator = field(repr=False)

    @classmethod
    def of(cls, device: DeviceAllocator) -> Self:
        """Make the statistics of an allocator that has seen all events."""
        log, count = device.log, len(device.log.blocks)
        allocated = np.cumsum(_ints(log.blocks))
        held, asked = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        if log.held:
            at, size, requested = np.array(log.held, np.int64).T
            np.add.at(held, at, size)
            np.add.at(asked, at, requested)
        out_of_memory = np.zeros(count, np.bool_)
        out_of_memory[log.failed] = True
        return cls(
            allocated_bytes=allocated,
            reserved_bytes=_steps(count, ((change.event, change.size_bytes) for change in log.reserved)),
            active_bytes=allocated + np.cumsum(held[:-1]),
            requested_bytes=np.cumsum(_ints(log.requested) + asked[:-1]),
            segments=_steps(count, ((change.event, change.segments) for change in log.reserved)),
            retries=_steps(count, ((event, 1) for event in log.retries)),
            out_of_memory=out_of_memory,
            _device=device,
        )

    @property
    def peak_allocated_bytes(self) -> int:
        """Maximum of the allocated bytes."""
        return _peak(self.allocated_bytes)

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum of the reserved bytes, within events too: pages mapped before memory ran out count."""
        return _peak(np.cumsum(_ints(change.size_bytes for change in self._device.log.reserved)))

    def driver_bytes(self) -> Ints:
        """Return rows of (event, bytes) taken from the driver, or (negative) given back."""
        return np.array([(each.event, each.size_bytes) for each in self._device.log.reserved], np.int64).reshape(-1, 2)


def most_reserved(log: Log, first_event: int) -> int:
    """Return the most bytes that are reserved after an event, from one of them on."""
    level, after = 0, dict[int, int]()
    for change in log.reserved:
        level += change.size_bytes
        after[max(change.event, first_event)] = level
    return max(after.values(), default=0)


def _ints(values: Iterable[int]) -> Ints:
    return np.array(values if isinstance(values, list) else list(values), np.int64)


def _peak(curve: Ints) -> int:
    return int(curve.max(initial=0))


def _steps(count: int, changes: Iterable[tuple[int, int]]) -> Ints:
    """Make a curve over the events from its changes."""
    curve = np.zeros(count + 1, np.int64)
    at, size = np.array([*changes, (count, 0)], np.int64).T
    np.add.at(curve, at, size)
    return np.cumsum(curve[:-1])


def inactive_split(device: DeviceAllocator) -> dict[str, int]:
    """Count free blocks that cannot be given back, as their segment is in use; 0 with expandable segments."""
    sizes: list[list[int]] = [
        []
        if device.settings.expandable_segments
        else [b.size for s in pool.values() for b in s.blocks.values() if not b.is_whole]
        for pool in device.shelves
    ]
    small, large = sizes
    return {
        f"{name}.{pool}.current": count
        for pool, of_pool in (("all", small + large), ("small_pool", small), ("large_pool", large))
        for name, count in (("inactive_split", len(of_pool)), ("inactive_split_bytes", sum(of_pool)))
    }
