"""The caching allocator of pinned host memory: what a request of page-locked memory really takes.

Reference: ATen/core/CachingHostAllocator.h of PyTorch 2.11 to 2.13. A request is rounded up to a power of two; freed
blocks of that power are kept and reused, never split or joined. Ignored: threads, capture of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elbowroom.allocator.checking import check_alloc, check_known, check_stream
from elbowroom.allocator.log import Log
from elbowroom.allocator.replay import Event, EventsDone, as_settings, checked_capacity, run, waits
from elbowroom.allocator.settings import UNLIMITED, Settings

Ints = npt.NDArray[np.int64]
PAGE_BYTES = 4096
"""What is carved from the reserved segment is rounded up to this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PinnedReplay:
    """What the allocator of pinned memory holds; one entry per event, taken after it.

    Attributes:
        allocated_bytes: in blocks, in use or kept for reuse (`allocated_bytes` of torch.cuda.host_memory_stats).
        active_bytes: in blocks in use, or freed and still waited for by a stream.
        requested_bytes: of the blocks in use, as they were asked for.
        pinned_bytes: page-locked: the blocks, and all of the reserved segment once it is there.
        out_of_memory: whether the event is an allocation that failed.
    """

    allocated_bytes: Ints
    active_bytes: Ints
    requested_bytes: Ints
    pinned_bytes: Ints
    out_of_memory: npt.NDArray[np.bool_]

    @property
    def peak_allocated_bytes(self) -> int:
        """Maximum of the bytes in blocks."""
        return int(self.allocated_bytes.max(initial=0))

    @property
    def peak_active_bytes(self) -> int:
        """Maximum of the bytes in use."""
        return int(self.active_bytes.max(initial=0))

    @property
    def peak_pinned_bytes(self) -> int:
        """Maximum of the page-locked bytes."""
        return int(self.pinned_bytes.max(initial=0))


def replay_pinned(
    events: Iterable[Event],
    settings: str | Settings = "",
    capacity_bytes: int | None = None,
    *,
    events_done: EventsDone = "at once",
) -> PinnedReplay:
    """Say what PyTorch's allocator of pinned host memory holds after each event.

    >>> replay_pinned([("alloc", "batch", 1_100_000_000)]).allocated_bytes.tolist()
    [2147483648]

    Args:
        events: as for `replay`; the stream of an allocation has no meaning here.
        settings: as in PYTORCH_ALLOC_CONF; the `pinned_` ones count.
        capacity_bytes: most that can be page-locked; None for no limit.
        events_done: when the streams are done with blocks they were recorded on.

    Raises:
        UsageError: an event, a setting or another argument is not allowed.
    """
    host = _Host(as_settings(settings), checked_capacity(capacity_bytes), waits(events_done))
    run(host, events)
    failed = np.zeros(len(host.log.blocks), np.bool_)
    failed[host.log.failed] = True
    return PinnedReplay(
        allocated_bytes=np.cumsum(np.array(host.log.blocks, np.int64)),
        active_bytes=np.array(host.active, np.int64),
        requested_bytes=np.cumsum(np.array(host.log.requested, np.int64)),
        pinned_bytes=np.array(host.pinned, np.int64),
        out_of_memory=failed,
    )


@dataclass(slots=True)
class _Block:
    """Pinned bytes; `carved` says that they are of the reserved segment, which is never given back."""

    size: int
    carved: bool
    requested: int = 0
    is_recorded: bool = False


class _Host:
    """The state of the allocator.

    Attributes:
        log: per event the change of the bytes in blocks, and of the requested ones.
        active: per event, bytes in use.
        pinned: per event, page-locked bytes.
    """

    def __init__(self, settings: Settings, capacity_bytes: int | None, wait_for_synchronize: bool) -> None:
        self.log = Log()
        self.active: list[int] = []
        self.pinned: list[int] = []
        self._settings = settings
        self._capacity_bytes = UNLIMITED if capacity_bytes is None else capacity_bytes
        self._waits = wait_for_synchronize
        self._live: dict[Hashable, _Block | None] = {}
        self._free: dict[int, list[_Block]] = {}
        self._held: list[_Block] = []
        self._done = 0
        self._in_blocks = self._last_in_blocks = 0
        self._requested = self._last_requested = 0
        self._active_bytes = self._pinned_bytes = 0
        self._carvable_bytes: int | None = None

    def allocate(self, key: Hashable, size: int, stream: int = 0) -> None:
        """Serve a request."""
        check_alloc(key, size, self._live, len(self.log.blocks))
        check_stream(stream, len(self.log.blocks))
        block: _Block | None = None
        if size:
            self._let_go()
            block = self._take(size)
            if block is None:
                self.log.failed.append(len(self.log.blocks))
        if block is not None:
            block.requested = size
            self._active_bytes += block.size
            self._requested += size
        self._live[key] = block
        self._end()

    def free(self, key: Hashable) -> None:
        """Free the block of a key."""
        check_known("free", key, self._live, len(self.log.blocks))
        block = self._live.pop(key)
        if block is not None:
            self._requested -= block.requested
            if block.is_recorded:
                self._held.append(block)
                self._done += not self._waits
            else:
                self._keep(block)
        self._end()

    def record_stream(self, key: Hashable, stream: int) -> None:
        """Note that a stream copies from or to the block of a key."""
        check_known("record_stream", key, self._live, len(self.log.blocks))
        check_stream(stream, len(self.log.blocks))
        block = self._live[key]
        if block is not None:
            block.is_recorded = True
        self._end()

    def synchronize(self) -> None:
        """All work issued so far is done."""
        self._done = len(self._held)
        self._end()

    def empty_cache(self) -> None:
        """Give back the blocks that are kept."""
        self._let_go()
        for block in [block for blocks in self._free.values() for block in blocks]:
            self._give_back(block)
        self._free.clear()
        self._end()

    def _take(self, size: int) -> _Block | None:
        settings = self._settings
        if size <= min(settings.pinned_max_round_bytes, settings.pinned_max_cached_bytes):
            size = 1 << (size - 1).bit_length()
        kept = self._free.get((size - 1).bit_length())
        if kept and kept[-1].size >= size:
            return kept.pop()
        return self._new(size)

    def _new(self, size: int) -> _Block | None:
        pages = size + -size % PAGE_BYTES
        if self._carvable_bytes is None:
            self._carvable_bytes = self._settings.pinned_reserve_bytes
            self._pinned_bytes += self._carvable_bytes
        carved = pages <= self._carvable_bytes
        if not carved and self._pinned_bytes + size > self._capacity_bytes:
            return None
        self._carvable_bytes -= pages * carved
        self._pinned_bytes += size * (not carved)
        self._in_blocks += size
        return _Block(size, carved)

    def _keep(self, block: _Block) -> None:
        self._active_bytes -= block.size
        if block.size > self._settings.pinned_max_cached_bytes:
            self._give_back(block)
        else:
            self._free.setdefault((block.size - 1).bit_length(), []).append(block)

    def _give_back(self, block: _Block) -> None:
        self._in_blocks -= block.size
        self._pinned_bytes -= block.size * (not block.carved)

    def _let_go(self) -> None:
        for block in self._held[: self._done]:
            block.is_recorded = False
            self._keep(block)
        del self._held[: self._done]
        self._done = 0

    def _end(self) -> None:
        self.log.blocks.append(self._in_blocks - self._last_in_blocks)
        self.log.requested.append(self._requested - self._last_requested)
        self._last_in_blocks, self._last_requested = self._in_blocks, self._requested
        self.active.append(self._active_bytes)
        self.pinned.append(self._pinned_bytes)
