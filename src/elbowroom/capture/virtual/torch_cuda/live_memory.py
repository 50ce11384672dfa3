"""Live memory: the caching allocator's state while a script runs: torch.cuda.memory_stats, memory_summary, snapshots.

When a script reads these, the ledger's events go through the allocator's model. So reserved bytes and segments are
those that the estimate will have.
"""

from __future__ import annotations

from typing import Any, final

from elbowroom.allocator import AllocatorSettings, parse_settings
from elbowroom.allocator.blocks import PRIVATE, SMALL_BYTES, Block
from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.statistics import inactive_split
from elbowroom.capture.virtual.ledger import Ledger

POOLS = ("all", "small_pool", "large_pool")
BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
COUNTS = ("allocation", "active", "segment", "inactive_split")
ZEROS = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


@final
class _Figure:
    """One statistic of one pool."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, by: int) -> None:
        self.current += by
        if by > 0:
            self.allocated += by
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= by

    def said(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ZEROS}


@final
class LiveMemory:
    """The allocator of a virtual device, as far as its ledger goes.

    Args:
        ledger: the ledger whose events are played.
        settings: settings of the allocator, as in PYTORCH_ALLOC_CONF.
    """

    def __init__(self, ledger: Ledger, settings: str) -> None:
        self._ledger = ledger
        self.use(settings)
        self._played = self._emptied = self._seen = 0
        self._figures = {(name, pool): _Figure() for name in BYTES + COUNTS for pool in POOLS}

    def use(self, settings: str) -> None:
        """Take other settings, before there are events.

        Raises:
            UsageError: the text has no valid settings.
        """
        self._settings: AllocatorSettings = parse_settings("" if settings == "exact" else settings)
        self._device = DeviceAllocator(self._settings, None, wait_for_synchronize=False)

    def stats(self) -> dict[str, Any]:
        """Return the result of torch.cuda.memory_stats_as_nested_dict."""
        self._play()
        self._settle_splits()
        said = {name: {pool: self._figures[name, pool].said() for pool in POOLS} for name in BYTES + COUNTS}
        log = self._device.log
        return {
            **said,
            "oversize_allocations": dict(ZEROS),
            "oversize_segments": dict(ZEROS),
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "num_device_alloc": sum(change.size_bytes > 0 for change in log.reserved),
            "num_device_free": sum(change.size_bytes < 0 for change in log.reserved),
            "num_sync_all_streams": 0,
            "max_split_size": min(self._settings.max_split_bytes, 2**63 - 1),
        }

    def reserved_bytes(self) -> int:
        """Bytes of all segments now."""
        self._play()
        return self._device.reserved_bytes

    def reset_peaks(self) -> None:
        """Reset peaks to the present bytes."""
        self._play()
        for figure in self._figures.values():
            figure.peak = figure.current

    def reset_sums(self) -> None:
        """Reset the sums of allocated and freed bytes."""
        self._play()
        for figure in self._figures.values():
            figure.allocated = figure.freed = 0

    def segments(self) -> list[dict[str, Any]]:
        """Segments with their blocks, as in a snapshot."""
        self._play()
        live = [block for block in self._device.live.values() if block is not None]
        free = [block for pool in self._device.shelves for shelf in pool.values() for block in shelf.blocks.values()]
        first = sorted((block for block in live + free if block.prev is None), key=lambda block: block.address)
        return [_segment(block) for block in first]

    def _play(self) -> None:
        """Bring the allocator to the ledger's last event."""
        ledger, device = self._ledger, self._device
        while self._played < len(ledger.events) or self._emptied < len(ledger.empties):
            if self._emptied < len(ledger.empties) and ledger.empties[self._emptied] <= self._played:
                self._emptied += 1
                device.empty_cache()
            else:
                _, storage, size_bytes = ledger.events[self._played]
                self._played += 1
                if size_bytes > 0:
                    device.allocate(storage, size_bytes, ledger.storages[storage].stream)
                else:
                    device.free(storage)
            self._count()

    def _count(self) -> None:
        """Count the event just played."""
        log = self._device.log
        block, requested = log.blocks[-1], log.requested[-1]
        if block:
            large = abs(block) > SMALL_BYTES
            one = 1 if block > 0 else -1
            self._change(large, allocation=one, active=one)
            self._change(large, allocated_bytes=block, active_bytes=block, requested_bytes=requested)
        for change in log.reserved[self._seen :]:
            self._change(change.large, segment=change.segments, reserved_bytes=change.size_bytes)
        self._seen = len(log.reserved)

    def _change(self, large: bool, **by: int) -> None:
        for name, size in by.items():
            self._figures[name, "all"].change(size)
            self._figures[name, "large_pool" if large else "small_pool"].change(size)

    def _settle_splits(self) -> None:
        for name, now in inactive_split(self._device).items():
            kind, pool, _ = name.split(".")
            figure = self._figures[kind, pool]
            figure.change(now - figure.current)


def _segment(first: Block) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    block: Block | None = first
    while block is not None:
        state = "inactive" if block.free else "active_allocated"
        asked = 0 if block.free else block.requested
        blocks.append(
            {"address": block.address, "size": block.size, "requested_size": asked, "state": state, "frames": []}
        )
        block = block.next
    used = [each for each in blocks if each["state"] != "inactive"]
    active = sum(each["size"] for each in used)
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(each["size"] for each in blocks),
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(each["requested_size"] for each in used),
        "stream": first.shelf.stream,
        "segment_type": "large" if first.shelf.large else "small",
        "segment_pool_id": (0, max(0, first.shelf.stream - PRIVATE)),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
