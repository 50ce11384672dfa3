"""Blocks of the allocator, the shelves on which they lie while free, and the device's memory below.

A *segment* is what one request to the driver gave; its *blocks* tile it and are linked to their neighbours. A *shelf*
holds the free blocks of one pool (small or large) and one stream: a block is only reused on the stream it was
allocated on, and never leaves its pool. A pool of a CUDA graph is taken for a stream of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

MIN_BLOCK_BYTES = 512
SMALL_BYTES = 2**20
"""Largest block of the small pool."""
SEGMENT_BYTES = 2 * 2**20
"""Size of a segment of the small pool. The driver hands out whole multiples of it; large segments are such too."""
LARGE_ALONE_BYTES = 10 * 2**20
"""Least size of a request that gets a segment of its own."""
PRIVATE = 2**32
"""Streams from this number on stand for private pools: their free blocks stay when the cache is emptied."""
SHIFT = 64
"""A free block's `order` is its size above this bit and its address below: sorting sorts by size, then address."""


class Block:
    """Bytes [address, address + size) of a segment.

    Attributes:
        prev: the block before it in its segment, None for the first.
        next: the block after it, None for the last.
        free: whether it is on its shelf.
        mapped: whether it has memory behind it; only a block of an expandable segment may have none.
        order: its place on the shelf while it is free.
        requested: requested bytes, while in use.
        streams: other streams on which it was used since it was allocated; None for none.
        shelved_at: number of searches of the large pool when it was put on the shelf.
    """

    __slots__ = (
        "address",
        "free",
        "mapped",
        "next",
        "order",
        "prev",
        "requested",
        "shelf",
        "shelved_at",
        "size",
        "streams",
    )

    def __init__(self, address: int, size: int, shelf: Shelf, prev: Block | None, after: Block | None) -> None:
        self.address = address
        self.size = size
        self.shelf = shelf
        self.prev = prev
        self.next = after
        self.free = False
        self.mapped = True
        self.order = 0
        self.requested = 0
        self.streams: set[int] | None = None
        self.shelved_at = 0

    def copied(self, shelf: Shelf) -> Block:
        """Return a copy on another shelf; the caller sets its neighbours."""
        new = Block(self.address, self.size, shelf, None, None)
        new.free, new.mapped, new.order = self.free, self.mapped, self.order
        new.requested, new.shelved_at = self.requested, self.shelved_at
        return new

    @property
    def is_whole(self) -> bool:
        """Whether the block is the whole of its segment."""
        return self.prev is None and self.next is None


class Shelf:
    """The free blocks of one pool and stream.

    Attributes:
        large: whether it belongs to the large pool.
        split_bytes: least remainder for which a block is split.
        orders: the orders of its blocks, ascending.
        blocks: each by its order.
        unmapped: blocks without memory behind them, by address (expandable segments).
        bases: addresses at which its expandable segments begin, ascending.
    """

    __slots__ = ("bases", "blocks", "large", "orders", "page_bytes", "split_bytes", "stream", "unmapped")

    def __init__(self, stream: int, large: bool, split_bytes: int, page_bytes: int) -> None:
        self.stream = stream
        self.large = large
        self.split_bytes = split_bytes
        self.page_bytes = page_bytes
        self.orders: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        self.bases: list[int] = []

    def emptied(self) -> Shelf:
        """Return a shelf of the same kind, with the same orders and bases; the caller sets its blocks."""
        new = Shelf(self.stream, self.large, self.split_bytes, self.page_bytes)
        new.orders, new.bases = self.orders.copy(), self.bases.copy()
        return new

    def take(self, block: Block) -> None:
        """Take a block off the shelf."""
        del self.orders[bisect_left(self.orders, block.order)]
        del self.blocks[block.order]
        block.free = False

    def put(self, block: Block, searches: int) -> None:
        """Put a block on the shelf."""
        block.free = True
        block.shelved_at = searches
        order = block.order = block.size << SHIFT | block.address
        self.blocks[order] = block
        insort(self.orders, order)

    def put_unmapped(self, block: Block) -> None:
        """Note that a block has no memory behind it."""
        insort(self.unmapped, block, key=_address)

    def take_unmapped(self, block: Block) -> None:
        """Undo `put_unmapped`."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]

    def unmapped_at(self) -> list[int]:
        """Return the addresses of the blocks without memory behind them."""
        return [block.address for block in self.unmapped]

    def base_of(self, block: Block) -> int:
        """Return the address at which the expandable segment of a block begins."""
        return self.bases[bisect_right(self.bases, block.address) - 1]


def _address(block: Block) -> int:
    return block.address


def join(block: Block, near: Block) -> None:
    """Merge a neighbour of the same segment into a block."""
    if block.prev is near:
        block.address = near.address
        block.prev = near.prev
        if near.prev is not None:
            near.prev.next = block
    else:
        block.next = near.next
        if near.next is not None:
            near.next.prev = block
    block.size += near.size


class DeviceMemory:
    """The driver's side: bytes handed out, and where. The lowest free address that fits is taken.

    Attributes:
        capacity_bytes: the most that can be handed out; None for no limit.
        used_bytes: bytes handed out, in whole multiples of `SEGMENT_BYTES`.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._starts = [0]
        self._ends = {0: 2**SHIFT}

    def copied(self, capacity_bytes: int | None) -> DeviceMemory:
        """Return a copy with another capacity."""
        new = DeviceMemory(capacity_bytes)
        new.used_bytes, new._starts, new._ends = self.used_bytes, self._starts.copy(), self._ends.copy()
        return new

    def take(self, size: int) -> int | None:
        """Take memory for one segment; return its address, or None if it does not fit."""
        size += -size % SEGMENT_BYTES
        return self.take_address(size) if self.take_bytes(size) else None

    def give(self, address: int, size: int) -> None:
        """Give a segment back."""
        size += -size % SEGMENT_BYTES
        self.used_bytes -= size
        self.give_address(address, size)

    def take_bytes(self, size: int) -> bool:
        """Take memory for pages whose address is known; return whether it fits."""
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            return False
        self.used_bytes += size
        return True

    def take_address(self, size: int) -> int:
        """Take the lowest range of free addresses that is long enough."""
        size += -size % SEGMENT_BYTES
        starts, ends = self._starts, self._ends
        index = next(i for i, start in enumerate(starts) if ends[start] - start >= size)
        start = starts[index]
        end = ends.pop(start)
        if start + size == end:
            del starts[index]
        else:
            starts[index] = start + size
            ends[start + size] = end
        return start

    def give_address(self, address: int, size: int) -> None:
        """Make a range of addresses free; it joins free neighbours."""
        end = address + size + -size % SEGMENT_BYTES
        starts, ends = self._starts, self._ends
        index = bisect_left(starts, address)
        if index < len(starts) and starts[index] == end:
            end = ends.pop(starts.pop(index))
        if index and ends[starts[index - 1]] == address:
            ends[starts[index - 1]] = end
        else:
            starts.insert(index, address)
            ends[address] = end
