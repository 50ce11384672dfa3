"""Replays of the same events within one capacity after another.

A replay within a capacity equals the replay without one until the driver refuses for the first time. So the state
before the first refusal at the least capacity is kept. Each replay begins at a copy of it. A replay ends soon after an
allocation that fails for good. If the settings depend on the capacity (a fraction of the memory), each replay begins at
the first event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

import numpy as np

from elbowroom.allocator.blocks import SEGMENT_BYTES, Block
from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.replay import Event, as_settings, checked_capacity, run
from elbowroom.allocator.settings import AllocatorSettings
from elbowroom.allocator.statistics import Ints, Replay

CHUNK = 2**15
"""Number of events that are replayed between two looks for failures."""


@final
class CapacityReplays:
    """Events that are replayed within capacities.

    Args:
        events: events as in `replay`; no stream is recorded on a block of another.
        settings: settings of the allocator, as in PYTORCH_ALLOC_CONF.
        free: the replay of the events without a limit.
        least_bytes: the least capacity that will be asked for; replays within smaller ones take longer.
        spared: keys whose failure changes nothing.
    """

    def __init__(
        self,
        events: Sequence[Event],
        settings: str | AllocatorSettings,
        free: Replay,
        *,
        least_bytes: int,
        spared: Collection[object] = (),
    ) -> None:
        self._events, self._spared = events, spared
        self._settings = as_settings(settings)
        self._least_bytes = least_bytes
        self._begin = 0 if self._settings.memory_fraction < 1 else _first_over(free.driver_bytes(), least_bytes)
        self._start: DeviceAllocator | None = None

    def replay(self, capacity_bytes: int) -> Replay:
        """Return what `elbowroom.allocator.replay` does, at least up to the first failure."""
        checked_capacity(capacity_bytes)
        if not self._begin or capacity_bytes < self._least_bytes:
            device, at = DeviceAllocator(self._settings, capacity_bytes, wait_for_synchronize=False), 0
        else:
            device, at = copied(self._kept(), capacity_bytes), self._begin
        while at < len(self._events) and not self._failed(device):
            run(device, self._events[at : at + CHUNK])
            at += CHUNK
        return Replay.of(device)

    def _kept(self) -> DeviceAllocator:
        if self._start is None:
            self._start = DeviceAllocator(self._settings, None, wait_for_synchronize=False)
            run(self._start, self._events[: self._begin])
        return self._start

    def _failed(self, device: DeviceAllocator) -> bool:
        return any(self._events[place][1] not in self._spared for place in device.log.failed)


def _first_over(changes: Ints, limit_bytes: int) -> int:
    """Return the first event at which the driver has handed out more than a limit; `changes` has (event, bytes)."""
    size = np.sign(changes[:, 1]) * (-(-np.abs(changes[:, 1]) // SEGMENT_BYTES) * SEGMENT_BYTES)
    over = np.flatnonzero(np.cumsum(size) > limit_bytes)
    return int(changes[over[0], 0]) if len(over) else 0


def copied(device: DeviceAllocator, capacity_bytes: int) -> DeviceAllocator:
    """Return a device in the same state, with another capacity."""
    new = DeviceAllocator(device.settings, capacity_bytes, wait_for_synchronize=False)
    blocks: dict[int, Block] = {}
    for old, shelves in zip(device.shelves, new.shelves, strict=True):
        for stream, shelf in old.items():
            shelves[stream] = shelf.emptied()
    found = [*(block for block in device.live.values() if block is not None)]
    for shelves in device.shelves:
        for shelf in shelves.values():
            found += [*shelf.blocks.values(), *shelf.unmapped]
    for block in found:
        blocks[id(block)] = block.copied(new.shelves[block.shelf.large][block.shelf.stream])
    for block in found:
        _linked(block, blocks)
    for old, shelves in zip(device.shelves, new.shelves, strict=True):
        for stream, shelf in old.items():
            shelves[stream].blocks = {order: blocks[id(block)] for order, block in shelf.blocks.items()}
            shelves[stream].unmapped = [blocks[id(block)] for block in shelf.unmapped]
    new.live = {key: None if block is None else blocks[id(block)] for key, block in device.live.items()}
    new.memory = device.memory.copied(capacity_bytes)
    new.reserved_bytes, new.searches, new.log = device.reserved_bytes, device.searches, device.log.copied()
    return new


def _linked(block: Block, blocks: dict[int, Block]) -> None:
    """Give the copy of a block the copies of its neighbours."""
    new = blocks[id(block)]
    new.prev = None if block.prev is None else blocks[id(block.prev)]
    new.next = None if block.next is None else blocks[id(block.next)]
