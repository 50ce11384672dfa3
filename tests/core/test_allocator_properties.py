"""What holds for the allocator whatever is asked of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.allocator import replay
from elbowroom.allocator.blocks import Block
from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.replay import run
from elbowroom.allocator.settings import parse_settings
from elbowroom.allocator.statistics import Replay, inactive_split
from tests.core.allocator_reference import Reference
from tests.core.allocator_streams import SETTINGS, Stream, random_stream

streams = st.builds(
    random_stream, st.integers(0, 2**32), length=st.integers(1, 120), settings=st.sampled_from(SETTINGS)
)


def device_after(stream: Stream) -> DeviceAllocator:
    waits = stream.events_done == "at synchronize"
    device = DeviceAllocator(parse_settings(stream.settings), stream.capacity_bytes, waits)
    run(device, stream.events)
    return device


def first_blocks(device: DeviceAllocator) -> Iterator[Block]:
    """The first block of each segment."""
    shelves = [shelf for pool in device.shelves for shelf in pool.values()]
    blocks = [*device._held, *[block for block in device.live.values() if block]]
    blocks += [block for shelf in shelves for block in [*shelf.blocks.values(), *shelf.unmapped]]
    first: set[Block] = set()
    for block in blocks:
        start = block
        while start.prev is not None:
            start = start.prev
        first.add(start)
    yield from first


@given(streams)
def test_the_curves_lie_in_order_and_below_the_capacity(stream: Stream) -> None:
    done = replay(stream.events, stream.settings, stream.capacity_bytes, events_done=stream.events_done)

    assert (done.allocated_bytes >= 0).all()
    assert (done.allocated_bytes <= done.active_bytes).all()
    assert (done.requested_bytes <= done.active_bytes).all()
    assert (done.active_bytes <= done.reserved_bytes).all()
    assert (done.reserved_bytes <= stream.capacity_bytes).all()
    assert (done.retries[1:] >= done.retries[:-1]).all()
    assert len(done.out_of_memory) == len(stream.events)


@given(streams)
def test_blocks_tile_their_segments_and_free_neighbours_are_joined(stream: Stream) -> None:
    device = device_after(stream)

    mapped = 0
    for first in first_blocks(device):
        block: Block | None = first
        while block is not None:
            after = block.next
            mapped += block.size if block.mapped else 0
            assert block.size > 0
            assert block.size % 512 == 0
            assert block.free <= block.mapped
            if after is not None:
                assert after.prev is block
                assert after.address == block.address + block.size
                assert not (block.free and after.free)
                assert block.mapped or after.mapped
            block = after
    assert mapped == device.reserved_bytes
    for shelf in [shelf for pool in device.shelves for shelf in pool.values()]:
        assert shelf.orders == sorted(shelf.blocks)
        assert all(block.free and block.shelf is shelf for block in shelf.blocks.values())


@given(streams)
def test_when_all_is_freed_and_the_cache_emptied_nothing_is_held(stream: Stream) -> None:
    device = device_after(stream)
    run(device, [*[("free", key) for key in list(device.live)], ("empty_cache",)])
    done = Replay.of(device)

    assert done.allocated_bytes[-1] == done.active_bytes[-1] == done.requested_bytes[-1] == 0
    assert done.reserved_bytes[-1] == done.segments[-1] == device.memory.used_bytes == 0
    assert not any(inactive_split(device).values())


@given(streams)
def test_more_room_never_fails_where_none_was_short(stream: Stream) -> None:
    # given a replay in which memory never ran short, when the device is larger, then nothing changes
    done = replay(stream.events, "", stream.capacity_bytes, events_done=stream.events_done)
    free = replay(stream.events, "", events_done=stream.events_done)

    if not done.retries[-1]:
        assert (done.reserved_bytes == free.reserved_bytes).all()
        assert (done.allocated_bytes == free.allocated_bytes).all()


@pytest.mark.parametrize("text", ["", "max_split_size_mb:24", "max_split_size_mb:40"])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_it_agrees_with_a_plain_model_of_the_rules(text: str, seed: int) -> None:
    # given few events in little memory
    stream = random_stream(seed, length=60, settings=text)
    border = parse_settings(text).max_split_bytes
    plain = Reference(stream.capacity_bytes, border if border < 2**60 else 0)

    # when both replay them
    expected = [plain.event(event) for event in stream.events]
    done = replay(stream.events, text, stream.capacity_bytes)

    # then every figure is the same after every event
    names = ("out_of_memory", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "segments")
    curves = [getattr(done, name).tolist() for name in (*names, "retries")]
    assert list(zip(*curves, strict=True)) == expected
