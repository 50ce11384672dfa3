"""Release: ways to give memory back to the driver when it runs short, in the order in which they are tried."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from elbowroom.allocator import expandable
from elbowroom.allocator.blocks import PRIVATE, SHIFT, Block
from elbowroom.allocator.settings import UNLIMITED

if TYPE_CHECKING:
    from elbowroom.allocator.blocks import Shelf
    from elbowroom.allocator.device_allocator import DeviceAllocator


def collect_garbage(device: DeviceAllocator) -> None:
    """Give back old whole segments of the large pool until the reserved bytes are below the threshold.

    Age is the number of searches of the pool since the block was freed. Each round takes all blocks at least as old
    as the mean of those left.
    """
    most = int(device.settings.garbage_collection_threshold * device.allowed_bytes)
    excess = device.reserved_bytes - most
    blocks = [b for shelf in device.shelves[True].values() for b in shelf.blocks.values() if b.is_whole]
    if device.settings.expandable_segments:
        return
    while excess > 0 and blocks:
        ages = [device.searches - block.shelved_at for block in blocks]
        mean = sum(ages) / len(ages)
        old = [block for block, age in zip(blocks, ages, strict=True) if age >= mean]
        blocks = [block for block, age in zip(blocks, ages, strict=True) if age < mean]
        for block in old:
            excess -= block.size
            _give_back(device, block)


def release_oversize(device: DeviceAllocator, shelf: Shelf, rounded: int) -> bool:
    """Give back the smallest block that may not be split and is big enough, else several from the largest down.

    Returns:
        Whether enough was given back to try again.
    """
    split_bytes = device.settings.max_split_bytes
    if split_bytes == UNLIMITED or device.settings.expandable_segments:
        return False
    needed, orders = max(rounded, split_bytes), shelf.orders
    at = bisect_left(orders, needed << SHIFT)
    if at < len(orders):
        _give_back(device, shelf.blocks[orders[at]])
        return True
    released = 0
    while released < needed and orders and orders[-1] >> SHIFT >= split_bytes:
        released += orders[-1] >> SHIFT
        _give_back(device, shelf.blocks[orders[-1]])
    return released >= needed


def release_cached(device: DeviceAllocator) -> None:
    """Wait for all streams, then give back every whole free segment of both pools, or every whole free page.

    Private pools keep their segments: a CUDA graph may write there again.
    """
    device.wait()
    for shelves in reversed(device.shelves):
        for shelf in (each for each in shelves.values() if each.stream < PRIVATE):
            for block in [shelf.blocks[order] for order in shelf.orders]:
                if device.settings.expandable_segments:
                    expandable.shrink(device, block)
                elif block.is_whole:
                    _give_back(device, block)


def _give_back(device: DeviceAllocator, block: Block) -> None:
    block.shelf.take(block)
    device.memory.give(block.address, block.size)
    device.reserve(-block.size, block.shelf.large, -1)
