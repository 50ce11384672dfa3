"""Expandable segments: a range of addresses per pool and stream, with memory mapped behind it page by page.

A page has the size of a segment: 2 MiB in the small pool, `large_segment_bytes` in the large one. The range is 9/8 of
the device's memory, so one is usually enough. Blocks tile it as they tile any segment. Blocks without memory behind
them are `unmapped`.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from elbowroom.allocator.blocks import Block, Shelf, join

if TYPE_CHECKING:
    from elbowroom.allocator.device_allocator import DeviceAllocator

UNLIMITED_DEVICE_BYTES = 2**44
"""Memory of a device without a limit, by which addresses are reserved."""


def best(shelf: Shelf, at: int) -> int:
    """Return the index of the block to take: the first one that could not grow larger than the next one could.

    Args:
        shelf: the free blocks.
        at: index of the first one that is large enough; one past the end for none.
    """
    orders, blocks = shelf.orders, shelf.blocks
    if at == len(orders) or (after := blocks[orders[at]].next) is None or after.mapped:
        return at  # a block that cannot grow has less room than any larger one
    room = _room(blocks[orders[at]])
    while at + 1 < len(orders) and (next_room := _room(blocks[orders[at + 1]])) < room:
        at, room = at + 1, next_room
    return at


def _room(block: Block) -> int:
    """Return the size to which a block could grow."""
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def grow(device: DeviceAllocator, shelf: Shelf, size: int) -> Block | None:
    """Map the missing pages of a block at the lowest address at which free and unmapped blocks can hold it.

    Returns:
        A block of at least `size`, off the shelf; None if memory ran out (pages mapped until then stay free).
    """
    block = _place(device, shelf, size)
    if not block.mapped and not _map(device, block, min(block.size, size)):
        return None
    while block.size < size:
        after = block.next
        if after is None or not _map(device, after, min(size - block.size, after.size)):
            return None
        block = after
    shelf.take(block)
    return block


def shrink(device: DeviceAllocator, block: Block) -> None:
    """Unmap the whole pages inside a free block, and give up the segment if nothing of it is left."""
    shelf = block.shelf
    base, page = shelf.base_of(block), shelf.page_bytes
    begin = block.address + -(block.address - base) % page
    end = block.address + block.size
    end -= (end - base) % page
    if begin < end:
        _unmap(device, block, begin, end)
        if block.is_whole:
            shelf.take_unmapped(block)
            shelf.bases.remove(base)
            device.memory.give_address(base, block.size)


def _place(device: DeviceAllocator, shelf: Shelf, size: int) -> Block:
    """Return the block at which the room begins; it is in a new segment if there is no room."""
    for block in shelf.unmapped:
        before = block.prev
        start = before if before is not None and before.free else block
        if _has_room(start, size):
            return start
    capacity = device.memory.capacity_bytes
    total = UNLIMITED_DEVICE_BYTES if capacity is None else capacity
    range_bytes = total + total // 8
    range_bytes += -range_bytes % shelf.page_bytes
    block = Block(device.memory.take_address(range_bytes), range_bytes, shelf, None, None)
    block.mapped = False
    insort(shelf.bases, block.address)
    shelf.put_unmapped(block)
    return block


def _has_room(start: Block, size: int) -> bool:
    """Return whether `size` bytes in a row are free or unmapped, beginning with a block."""
    block: Block | None = start
    while size > 0 and block is not None and (block.free or not block.mapped):
        size -= block.size
        block = block.next
    return size <= 0


def _map(device: DeviceAllocator, block: Block, size: int) -> bool:
    """Map the first pages of an unmapped block, and shelve them as a block joined with free neighbours."""
    shelf = block.shelf
    mapped = size + -size % shelf.page_bytes
    if not device.memory.take_bytes(mapped):
        return False
    shelf.take_unmapped(block)
    block.mapped = True
    if mapped < block.size:
        after = block.next
        left = block.next = Block(block.address + mapped, block.size - mapped, shelf, block, after)
        left.mapped = False
        if after is not None:
            after.prev = left
        shelf.put_unmapped(left)
        block.size = mapped
    device.shelve(block)
    device.reserve(mapped, shelf.large, 0)
    return True


def _unmap(device: DeviceAllocator, block: Block, begin: int, end: int) -> None:
    """Make [begin, end) of a free block unmapped; the rest stays free."""
    shelf = block.shelf
    shelf.take(block)
    before, after = begin - block.address, block.address + block.size - end
    if before:
        first = Block(block.address, before, shelf, block.prev, block)
        if block.prev is not None:
            block.prev.next = first
        block.prev = first
        shelf.put(first, device.searches)
    if after:
        last = Block(end, after, shelf, block, block.next)
        if block.next is not None:
            block.next.prev = last
        block.next = last
        shelf.put(last, device.searches)
    block.address, block.size, block.mapped = begin, end - begin, False
    for near in (block.prev, block.next):
        if near is not None and not near.mapped:
            shelf.take_unmapped(near)
            join(block, near)
    shelf.put_unmapped(block)
    device.memory.used_bytes -= end - begin
    device.reserve(begin - end, shelf.large, 0)
