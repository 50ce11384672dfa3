"""The model of the allocator beside steps of a training on a real GPU: every block at the address it had there.

The traces begin in the middle of a training. What was allocated then is found by undoing the events, from the last to
the first, on the segments that are there at the end.
"""

from __future__ import annotations

import csv
import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from elbowroom.allocator.blocks import MIN_BLOCK_BYTES, Block, Shelf
from elbowroom.allocator.device_allocator import SPLIT_LARGE_BYTES, DeviceAllocator
from elbowroom.allocator.settings import AllocatorSettings

DATA = Path(__file__).parents[1] / "data" / "allocator"
NAMES = ["wed_medium_128_train", "wed_medium_256_train", "wed_medium_1024_train"]
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def live_before(events: list[Row], final: list[Row]) -> dict[int, int]:
    """Requested bytes by address of what was allocated before the first event."""
    live = {
        int(row["segment_addr_minus_base"]) + int(row["block_offset"]): int(row["requested_size"])
        for row in final
        if row["state"] == "active_allocated"
    }
    for event in reversed(events):
        address, size = int(event["addr_minus_base"]), int(event["size"])
        if event["action"] == "alloc":
            assert live.pop(address) == size
        elif event["action"] == "free_completed":
            assert address not in live
            live[address] = size
    return live


def device_before(live: dict[int, int], final: list[Row]) -> DeviceAllocator:
    """An allocator with these blocks in the segments; the key of each is its address."""
    device = DeviceAllocator(AllocatorSettings(), None, wait_for_synchronize=False)
    for row in {row["segment_addr_minus_base"]: row for row in final}.values():
        start, size, large = int(row["segment_addr_minus_base"]), int(row["segment_size"]), row["pool"] == "large"
        split_bytes = SPLIT_LARGE_BYTES if large else MIN_BLOCK_BYTES
        shelf = device.shelves[large].setdefault(0, Shelf(0, large, split_bytes, 0))
        device.reserve(size, large, 1)
        end = start + size
        addresses = sorted(address for address in live if start <= address < end)
        last: Block | None = None
        at = start
        for address, after in pairwise([*addresses, end, end]):
            if address > at:
                last = linked(Block(at, address - at, shelf, last, None))
                shelf.put(last, 0)
            if address < end:
                taken = live[address] + -live[address] % 512
                tail = after - address - taken
                taken += tail if tail < split_bytes else 0  # too small to have been split off
                last = device.live[address] = linked(Block(address, taken, shelf, last, None))
                last.requested = live[address]
                at = address + taken
    return device


def linked(block: Block) -> Block:
    if block.prev is not None:
        block.prev.next = block
    return block


def blocks_of(device: DeviceAllocator) -> list[tuple[int, int, int, str]]:
    """(address, size, requested, state) of all blocks."""
    live = [(b.address, b.size, b.requested, "active_allocated") for b in device.live.values() if b]
    shelves = [shelf for pool in device.shelves for shelf in pool.values()]
    free = [(b.address, b.size, 0, "inactive") for shelf in shelves for b in shelf.blocks.values()]
    return sorted(live + free)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_placed_where_the_gpu_had_it(name: str) -> None:
    # given the state before the step
    events, final = rows(f"{name}.events"), rows(f"{name}.final_segments")
    device = device_before(live_before(events, final), final)
    segments = len(device.log.reserved)

    # when the events are replayed, then every allocation is given the address that it had
    placed = 0
    for event in events:
        address = int(event["addr_minus_base"])
        if event["action"] == "alloc":
            device.allocate(address, int(event["size"]), int(event["stream"]))
            block = device.live[address]
            assert block is not None
            assert block.address == address, f"event {event['i']}"
            placed += 1
        elif event["action"] == "free_requested":
            device.free(address)

    # and no segment is asked for or given back, as there, and the blocks at the end are those of the snapshot
    assert placed == sum(event["action"] == "alloc" for event in events) > 6000
    assert len(device.log.reserved) == segments
    expected = [
        (
            int(row["segment_addr_minus_base"]) + int(row["block_offset"]),
            int(row["block_size"]),
            int(row["requested_size"]) if row["state"] == "active_allocated" else 0,
            row["state"],
        )
        for row in final
    ]
    assert blocks_of(device) == sorted(expected)
