"""The device's caching allocator: how one request is served.

Reference: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11. The results are equal on every event (tests/fakecuda and
tests/data/allocator). A request is rounded up and takes the smallest free block of its pool and stream that holds it.
This is best fit; among equal blocks the lowest address wins. The rest of the block goes back to the shelf. If no block
fits, the driver is asked for a segment. If the driver has no room, free blocks are given back to it, in the order of
release.py.

A pool of a CUDA graph is a stream with its own number (PRIVATE), and is kept to the end.

Ignored: memory shared between processes; other users of the device (subtract their bytes from the capacity). Ties
between equal free blocks depend on where the driver places segments; here it is the lowest address.
Versions: PyTorch 2.11. The constructor of later versions sets the memory fraction to 1. Whether garbage is then
collected without a fraction below 1 was not checked.
Cost: an event takes O(log n) comparisons in n free blocks of a shelf.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable

from elbowroom.allocator import expandable, release
from elbowroom.allocator.blocks import (
    LARGE_ALONE_BYTES,
    MIN_BLOCK_BYTES,
    SEGMENT_BYTES,
    SHIFT,
    SMALL_BYTES,
    Block,
    DeviceMemory,
    Shelf,
    join,
)
from elbowroom.allocator.checking import check_alloc, check_known, check_stream
from elbowroom.allocator.log import HeldBlock, Log, ReservedChange
from elbowroom.allocator.settings import INTERVALS, MIB, UNLIMITED, AllocatorSettings

SPLIT_LARGE_BYTES = MIB + MIN_BLOCK_BYTES
"""Least remainder for which a block of the large pool is split: more than 1 MiB."""
ONE_EXBIBYTE = 2**60
"""A request of this size is refused before anything else is tried."""


class DeviceAllocator:
    """The state of the allocator of one device.

    Attributes:
        live: the block of each key; None if the request was of 0 bytes or ran out of memory.
        shelves: (small, large) pool; each by stream.
        memory: the driver's side.
        reserved_bytes: bytes of all segments, or of all mapped pages.
        allowed_bytes: the most that may be reserved; a fraction of 1 sets no limit but the driver's.
        collects: whether old free blocks are given back.
        searches: number of searches of the large pool, counted if `collects`.
        log: the figures of each event.
    """

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None, wait_for_synchronize: bool) -> None:
        self.settings = settings
        self.live: dict[Hashable, Block | None] = {}
        self.shelves: tuple[dict[int, Shelf], dict[int, Shelf]] = ({}, {})
        self.memory = DeviceMemory(capacity_bytes)
        self.reserved_bytes = 0
        total = UNLIMITED if capacity_bytes is None else capacity_bytes
        self.allowed_bytes = int(settings.memory_fraction * total) if settings.memory_fraction < 1 else UNLIMITED
        self.collects = settings.memory_fraction < 1 and settings.garbage_collection_threshold > 0
        self.searches = 0
        self.log = Log()
        self._small, self._large = self.shelves
        self._rounds = any(divisions > 1 for divisions in settings.roundup_divisions)
        splits_all = settings.max_split_bytes == UNLIMITED
        self._is_plain = splits_all and not settings.expandable_segments
        self._expands = splits_all and settings.expandable_segments and not self.collects
        self._split_below_bytes = UNLIMITED if settings.expandable_segments else settings.max_split_bytes
        self._waits = wait_for_synchronize
        self._held: list[Block] = []
        self._done = 0

    def allocate(self, key: Hashable, size: int, stream: int = 0) -> None:
        """Serve a request, and remember its block by a key."""
        live, log = self.live, self.log
        if type(size) is not int or not 0 < size < ONE_EXBIBYTE or live.get(key) is not None:
            return self._refuse_or_skip(key, size)
        if self._done:
            self.let_go()
        rounded = (size + 511) & -512 if not self._rounds else self._round(size)
        pool = self._large if rounded > SMALL_BYTES else self._small
        shelf = pool.get(stream) or self._new_shelf(stream, pool is self._large)
        orders = shelf.orders
        at = bisect_left(orders, rounded << SHIFT)
        if self._expands:
            at = expandable.best(shelf, at)
        elif not self._is_plain or self.collects:
            at = self._choose(shelf, rounded, at)
        if at < len(orders):
            block = shelf.blocks.pop(orders.pop(at))
            block.free = False
        else:
            block = self._obtain(shelf, rounded)
            if block is None:
                return self._fail(key)
        rest = block.size - rounded
        if rest >= shelf.split_bytes and (rounded < self._split_below_bytes or not shelf.large):
            after = block.next
            left = block.next = Block(block.address + rounded, rest, shelf, block, after)
            if after is not None:
                after.prev = left
            block.size = rounded
            left.free = True
            left.shelved_at = self.searches
            order = left.order = rest << SHIFT | left.address
            shelf.blocks[order] = left
            insort(orders, order)
        block.requested = size
        live[key] = block
        log.blocks.append(block.size)
        log.requested.append(size)
        return None

    def free(self, key: Hashable) -> None:
        """Free the block of a key."""
        if key not in self.live:
            check_known("free", key, self.live, len(self.log.blocks))
        block, log = self.live.pop(key), self.log
        if block is None:
            self.skip()
            return
        log.blocks.append(-block.size)
        log.requested.append(-block.requested)
        if block.streams:
            log.held.append(HeldBlock(len(log.blocks) - 1, block.size, block.requested))
            self._held.append(block)
            self._done += not self._waits
        else:
            self.shelve(block)

    def shelve(self, block: Block) -> None:
        """Put a block that is no longer in use on its shelf, joined with free neighbours."""
        shelf = block.shelf
        orders, blocks = shelf.orders, shelf.blocks
        near = block.prev
        if near is not None and near.free:
            order = near.order
            del orders[bisect_left(orders, order)], blocks[order]
            join(block, near)
        near = block.next
        if near is not None and near.free:
            order = near.order
            del orders[bisect_left(orders, order)], blocks[order]
            join(block, near)
        block.free = True
        block.shelved_at = self.searches
        order = block.order = block.size << SHIFT | block.address
        blocks[order] = block
        insort(orders, order)

    def record_stream(self, key: Hashable, stream: int) -> None:
        """Note that another stream uses the block of a key too."""
        check_known("record_stream", key, self.live, len(self.log.blocks))
        check_stream(stream, len(self.log.blocks))
        block = self.live[key]
        if block is not None and stream != block.shelf.stream:
            block.streams = (block.streams or set()) | {stream}
        self.skip()

    def synchronize(self) -> None:
        """Note that all work issued so far is done."""
        self._done = len(self._held)
        self.skip()

    def empty_cache(self) -> None:
        """Give all free segments or pages back to the driver."""
        release.release_cached(self)
        self.skip()

    def skip(self) -> None:
        """End an event that hands out and frees nothing."""
        self.log.blocks.append(0)
        self.log.requested.append(0)

    def let_go(self) -> None:
        """Shelve the blocks whose other streams are done with them."""
        log, done = self.log, self._held[: self._done]
        del self._held[: self._done]
        self._done = 0
        for block in done:
            log.held.append(HeldBlock(len(log.blocks), -block.size, -block.requested))
            block.streams = None
            self.shelve(block)

    def wait(self) -> None:
        """Wait until all work is done, and shelve the blocks that were held for it."""
        self._done = len(self._held)
        self.let_go()

    def reserve(self, size: int, large: bool, segments: int) -> None:
        """Count bytes that were taken from the driver, or (negative) given back."""
        self.reserved_bytes += size
        self.log.reserved.append(ReservedChange(len(self.log.blocks), size, segments, large))

    def _refuse_or_skip(self, key: Hashable, size: int) -> None:
        check_alloc(key, size, self.live, len(self.log.blocks))
        if size:
            return self._fail(key)
        self.live[key] = None
        return self.skip()

    def _new_shelf(self, stream: int, large: bool) -> Shelf:
        check_stream(stream, len(self.log.blocks))
        is_fine = not large or self.settings.expandable_segments
        shelf = self.shelves[large][stream] = Shelf(
            stream,
            large,
            split_bytes=MIN_BLOCK_BYTES if is_fine else SPLIT_LARGE_BYTES,
            page_bytes=self.settings.large_segment_bytes if large else SEGMENT_BYTES,
        )
        return shelf

    def _round(self, size: int) -> int:
        """Return the size of the block for a request if sizes are rounded to parts of powers of two."""
        power = size.bit_length() - 1
        divisions = self.settings.roundup_divisions[min(max(power - 20, 0), INTERVALS - 1)]
        if divisions <= 1 or size <= MIN_BLOCK_BYTES * divisions:
            return size + -size % MIN_BLOCK_BYTES
        part = 2**power // divisions
        return size + -size % part

    def _choose(self, shelf: Shelf, rounded: int, at: int) -> int:
        """Return the index of the block to take if settings restrict the choice; one past the end for none."""
        self.searches += self.collects and shelf.large
        none = len(shelf.orders)
        if at == none:
            return none
        if self.settings.expandable_segments:
            at = expandable.best(shelf, at)
        size, split_bytes = shelf.orders[at] >> SHIFT, self.settings.max_split_bytes
        if rounded < split_bytes:
            return at if size < split_bytes else none
        return at if size < rounded + self.settings.max_non_split_rounding_bytes else none

    def _obtain(self, shelf: Shelf, rounded: int) -> Block | None:
        """Get a block from the driver; if it has no room, give free blocks back to it and ask again."""
        if self.collects:
            release.collect_garbage(self)
        block = self._from_driver(shelf, rounded)
        if block is None and release.release_oversize(self, shelf, rounded):
            block = self._from_driver(shelf, rounded)
        if block is None:
            release.release_cached(self)
            self.log.retries.append(len(self.log.blocks))
            block = self._from_driver(shelf, rounded)
        return block

    def _from_driver(self, shelf: Shelf, rounded: int) -> Block | None:
        size = segment_bytes(rounded, self.settings)
        if self.reserved_bytes + size > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return expandable.grow(self, shelf, rounded)
        address = self.memory.take(size)
        if address is None:
            return None
        self.reserve(size, shelf.large, 1)
        return Block(address, size, shelf, None, None)

    def _fail(self, key: Hashable) -> None:
        self.live[key] = None
        self.log.failed.append(len(self.log.blocks))
        self.skip()


def segment_bytes(rounded: int, settings: AllocatorSettings) -> int:
    """Return the size of the segment to ask the driver for if no free block has the rounded size."""
    if rounded <= SMALL_BYTES:
        return SEGMENT_BYTES
    return settings.large_segment_bytes if rounded < LARGE_ALONE_BYTES else rounded + -rounded % SEGMENT_BYTES
