"""What a replay says: the statistics after each event, and those of torch.cuda.memory_stats at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from elbowroom.allocator.blocks import SMALL_BYTES
from elbowroom.allocator.device import Device
from elbowroom.allocator.log import Log
from elbowroom.allocator.settings import UNLIMITED

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What the allocator holds; one entry per event, taken after it. Bytes, unless said otherwise.

    Attributes:
        allocated_bytes: in blocks that are in use: requests rounded up, and tails too small to split off.
        reserved_bytes: taken from the driver.
        active_bytes: allocated, and freed but still waited for by another stream.
        requested_bytes: of the active blocks, as they were asked for.
        segments: number of segments; 0 with expandable segments, which are not counted.
        retries: times until then that an allocation was tried again after the cache had been emptied.
        out_of_memory: whether the event is an allocation that failed.
    """

    allocated_bytes: Ints
    reserved_bytes: Ints
    active_bytes: Ints
    requested_bytes: Ints
    segments: Ints
    retries: Ints
    out_of_memory: Flags
    _device: Device = field(repr=False)

    @classmethod
    def of(cls, device: Device) -> Self:
        """From an allocator that has seen all events."""
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

    @property
    def peak_active_bytes(self) -> int:
        """Maximum of the active bytes."""
        return _peak(self.active_bytes)

    @property
    def peak_requested_bytes(self) -> int:
        """Maximum of the requested bytes."""
        return _peak(self.requested_bytes)

    def driver_bytes(self) -> Ints:
        """Rows of (event, bytes): what was taken from the driver, and (negative) given back."""
        return np.array([(each.event, each.size_bytes) for each in self._device.log.reserved], np.int64).reshape(-1, 2)

    def memory_stats(self) -> dict[str, int]:
        """The statistics at the end, named and defined as in torch.cuda.memory_stats.

        Limits: of `inactive_split` and `inactive_split_bytes` there is only `current`.
        """
        log, settings = self._device.log, self._device.settings
        used, active = _used(log), _active(log)
        reserved = np.array(log.reserved, np.int64).reshape(-1, 4)
        in_large = reserved[:, 3] > 0
        stats = {
            **_by_pool("allocation", np.sign(used[0]), used[2]),
            **_by_pool("allocated_bytes", used[0], used[2]),
            **_by_pool("active", np.sign(active[0]), active[2]),
            **_by_pool("active_bytes", active[0], active[2]),
            **_by_pool("requested_bytes", active[1], active[2]),
            **_by_pool("segment", reserved[:, 2], in_large),
            **_by_pool("reserved_bytes", reserved[:, 1], in_large),
            **inactive_split(self._device),
            "num_alloc_retries": len(log.retries),
            "num_ooms": len(log.failed),
            "num_device_alloc": int((reserved[:, 1] > 0).sum()),
            "num_device_free": int((reserved[:, 1] < 0).sum()),
            "max_split_size": -1 if settings.max_split_bytes == UNLIMITED else settings.max_split_bytes,
        }
        over = np.abs(used[0]) >= settings.max_split_bytes
        stats |= _figures("oversize_allocations", np.sign(used[0][over]))
        over = (np.abs(reserved[:, 1]) >= settings.max_split_bytes) & (reserved[:, 2] != 0)
        return stats | _figures("oversize_segments", reserved[over, 2])


def _ints(values: Iterable[int]) -> Ints:
    return np.array(values if isinstance(values, list) else list(values), np.int64)


def _peak(curve: Ints) -> int:
    return int(curve.max(initial=0))


def _steps(count: int, changes: Iterable[tuple[int, int]]) -> Ints:
    """A curve over the events from its changes."""
    curve = np.zeros(count + 1, np.int64)
    at, size = np.array([*changes, (count, 0)], np.int64).T
    np.add.at(curve, at, size)
    return np.cumsum(curve[:-1])


def _used(log: Log) -> tuple[Ints, Ints, Flags]:
    """Blocks handed out and freed: bytes, bytes requested, and whether they are of the large pool."""
    size = _ints(log.blocks)
    return size, _ints(log.requested), np.abs(size) > SMALL_BYTES


def _active(log: Log) -> tuple[Ints, Ints, Flags]:
    """Blocks that became active and that ceased to be, in order, as in `_used`."""
    size, requested, _ = _used(log)
    if log.held:
        held = np.array(log.held, np.int64)
        starts = held[held[:, 1] > 0, 0]
        ends = held[held[:, 1] < 0]
        size[starts] = requested[starts] = 0
        size = np.insert(size, ends[:, 0], ends[:, 1])
        requested = np.insert(requested, ends[:, 0], ends[:, 2])
    return size, requested, np.abs(size) > SMALL_BYTES


def _by_pool(name: str, changes: Ints, in_large: Flags) -> dict[str, int]:
    return {
        **_figures(f"{name}.all", changes),
        **_figures(f"{name}.small_pool", changes[~in_large]),
        **_figures(f"{name}.large_pool", changes[in_large]),
    }


def _figures(name: str, changes: Ints) -> dict[str, int]:
    rises = int(changes[changes > 0].sum())
    current = int(changes.sum())
    return {
        f"{name}.current": current,
        f"{name}.peak": _peak(np.cumsum(changes)),
        f"{name}.allocated": rises,
        f"{name}.freed": rises - current,
    }


def inactive_split(device: Device) -> dict[str, int]:
    """Free blocks that cannot be given back, as others of their segment are in use; none with expandable segments."""
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
