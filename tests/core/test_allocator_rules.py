"""Each rule of the caching allocator on a case small enough for hand arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from elbowroom.allocator import Replay, replay
from elbowroom.allocator.blocks import PRIVATE
from elbowroom.errors import UsageError

KIB, MIB = 2**10, 2**20


def allocs(*sizes: int) -> list[tuple[Any, ...]]:
    """Allocate each of these sizes, by the keys 0, 1, ..."""
    return [("alloc", key, size) for key, size in enumerate(sizes)]


def last(done: Replay) -> tuple[int, int]:
    """Allocated and reserved bytes at the end."""
    return int(done.allocated_bytes[-1]), int(done.reserved_bytes[-1])


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # of the large pool, split off a segment of 20 MiB
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounds up to 10 MiB, and has a segment of its own
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the 2 MiB - 512 behind it are more than 1 MiB: split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB over: not split off
        (19 * MIB, 20 * MIB, 20 * MIB),
    ],
)
def test_a_request_is_rounded_up_and_served_from_a_segment(size: int, allocated: int, reserved: int) -> None:
    done = replay([("alloc", "a", size)])

    assert last(done) == (allocated, reserved)
    assert done.requested_bytes.tolist() == [size]


def test_small_blocks_share_a_segment_until_it_is_full() -> None:
    # given requests of 600 KiB: three in a segment of 2 MiB, the fourth in the next
    done = replay(allocs(*[600 * KIB] * 4))

    assert done.reserved_bytes.tolist() == [2 * MIB, 2 * MIB, 2 * MIB, 4 * MIB]
    assert done.segments.tolist() == [1, 1, 1, 2]


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    # given free blocks of 30 and 14 MiB
    before = [*allocs(30 * MIB, 14 * MIB), ("free", 0), ("free", 1)]

    # when 12 MiB are wanted, then 14 - 12 = 2 MiB are split off the smaller one, and 30 MiB still fit without more
    done = replay([*before, ("alloc", "a", 12 * MIB), ("alloc", "b", 30 * MIB)])

    assert last(done) == (42 * MIB, 44 * MIB)


def test_free_neighbours_become_one_block_again() -> None:
    # given a segment of 20 MiB cut in 6 + 6 + 8
    events = [*allocs(6 * MIB, 6 * MIB, 8 * MIB), ("free", 0), ("free", 2), ("free", 1)]

    # when all are freed, then 20 MiB fit into it
    done = replay([*events, ("alloc", "a", 20 * MIB)])

    assert last(done) == (20 * MIB, 20 * MIB)


def test_a_block_is_not_used_on_another_stream() -> None:
    done = replay([("alloc", "a", 12 * MIB, 0), ("free", "a"), ("alloc", "b", 12 * MIB, 1)])

    assert last(done) == (12 * MIB, 24 * MIB)


def test_the_pools_do_not_lend_to_each_other() -> None:
    # given a free large segment, when a small block is wanted, then it needs a segment of the small pool
    done = replay([("alloc", "a", 12 * MIB), ("free", "a"), ("alloc", "b", 1000)])

    assert last(done) == (1024, 14 * MIB)


def test_a_pool_of_its_own_keeps_its_memory_when_the_cache_is_emptied() -> None:
    # given 12 MiB of the default stream, and 30 MiB of a pool of its own
    events = [("alloc", 0, 12 * MIB), ("alloc", 1, 30 * MIB, PRIVATE + 1), ("free", 0), ("free", 1), ("empty_cache",)]

    # then its segment is there for the pool alone
    assert last(replay(events)) == (0, 30 * MIB)
    assert last(replay([*events, ("alloc", 2, 30 * MIB)])) == (30 * MIB, 60 * MIB)
    assert last(replay([*events, ("alloc", 2, 30 * MIB, PRIVATE + 1)])) == (30 * MIB, 30 * MIB)


def test_a_block_used_on_another_stream_is_active_until_a_later_allocation() -> None:
    events = [
        ("alloc", "a", 12 * MIB - 1),
        ("record_stream", "a", 1),
        ("free", "a"),
        ("alloc", "b", 1),
    ]
    done = replay(events)

    assert done.allocated_bytes.tolist() == [12 * MIB, 12 * MIB, 0, 512]
    assert done.active_bytes.tolist() == [12 * MIB, 12 * MIB, 12 * MIB, 512]
    assert done.requested_bytes.tolist() == [12 * MIB - 1, 12 * MIB - 1, 12 * MIB - 1, 1]


def test_a_block_used_on_another_stream_can_wait_for_a_synchronize() -> None:
    # given a free of a block that another stream still uses
    events = [("alloc", "a", 12 * MIB), ("record_stream", "a", 1), ("free", "a"), ("alloc", "b", 12 * MIB)]

    # when nothing says that the stream is done, then the next allocation needs a second segment
    late = replay([*events, ("synchronize",), ("alloc", "c", 12 * MIB)], events_done="at synchronize")
    soon = replay([*events, ("synchronize",), ("alloc", "c", 12 * MIB)])

    assert late.reserved_bytes.tolist()[3:] == [24 * MIB, 24 * MIB, 24 * MIB]
    assert soon.reserved_bytes.tolist()[3:] == [12 * MIB, 12 * MIB, 24 * MIB]


def test_recording_the_stream_of_the_allocation_changes_nothing() -> None:
    done = replay([("alloc", "a", 12 * MIB, 2), ("record_stream", "a", 2), ("free", "a")])

    assert done.active_bytes.tolist() == [12 * MIB, 12 * MIB, 0]


def test_empty_cache_gives_back_whole_free_segments_only() -> None:
    # given segments of 12 MiB (free), 20 MiB (6 in use) and 2 MiB (free)
    events = [*allocs(12 * MIB, 6 * MIB, 100), ("free", 0), ("free", 2), ("empty_cache",)]

    assert last(replay(events)) == (6 * MIB, 20 * MIB)


def test_when_the_device_is_full_the_cache_is_emptied_and_the_request_tried_again() -> None:
    # given 40 MiB of which 12 + 12 are free but neither holds 20
    events = [*allocs(12 * MIB, 12 * MIB), ("free", 0), ("free", 1), ("alloc", "a", 20 * MIB)]
    done = replay(events, capacity_bytes=40 * MIB)

    assert done.retries.tolist() == [0, 0, 0, 0, 1]
    assert last(done) == (20 * MIB, 20 * MIB)
    assert not done.out_of_memory.any()


def test_out_of_memory_allocates_nothing_and_the_replay_goes_on() -> None:
    # given 30 MiB, 20 in use; when 12 more are wanted, then they fail, and so does the retry
    events = [*allocs(20 * MIB, 12 * MIB), ("free", 1), ("alloc", 2, 10 * MIB)]
    done = replay(events, capacity_bytes=30 * MIB)

    assert done.out_of_memory.tolist() == [False, True, False, False]
    assert done.allocated_bytes.tolist() == [20 * MIB, 20 * MIB, 20 * MIB, 30 * MIB]
    assert done.retries.tolist() == [0, 1, 1, 1]


def test_there_is_no_smaller_segment_for_a_request_that_would_fit_one() -> None:
    # given 10 MiB; 1.5 MiB would need a segment of 20, 1 byte one of 2
    done = replay([("alloc", "a", 1536 * KIB), ("alloc", "b", 1)], capacity_bytes=10 * MIB)

    assert done.out_of_memory.tolist() == [True, False]


def test_a_block_of_max_split_size_serves_no_smaller_request_and_is_not_split() -> None:
    # given a free block of 64 MiB and a border of 32 MiB
    before = [("alloc", "a", 64 * MIB), ("free", "a")]

    # when 30 MiB are wanted it is not taken; for 46 it is, as it is less than 20 MiB larger; for 44 it is not
    reserved = [last(replay([*before, ("alloc", "b", size * MIB)], "max_split_size_mb:32")) for size in (30, 46, 44)]

    assert reserved == [(30 * MIB, 94 * MIB), (64 * MIB, 64 * MIB), (44 * MIB, 108 * MIB)]


def test_oversize_blocks_are_given_back_before_the_whole_cache() -> None:
    # given free blocks of 64 (oversize) and 12 MiB on a device of 100, when 44 MiB are wanted
    events = [*allocs(64 * MIB, 12 * MIB), ("free", 0), ("free", 1), ("alloc", "a", 44 * MIB)]
    done = replay(events, "max_split_size_mb:32", capacity_bytes=100 * MIB)

    # then only the one of 64 is given back: 12 + 44 MiB
    assert last(done) == (44 * MIB, 56 * MIB)
    assert done.retries[-1] == 0


@pytest.mark.parametrize(
    ("settings", "size", "allocated"),
    [
        ("roundup_power2_divisions:4", 1200, 1200 + 336),  # 512 * 4 = 2048 is not passed: to a multiple of 512
        ("roundup_power2_divisions:4", 2049, 2560),  # parts of 2048 / 4 = 512
        ("roundup_power2_divisions:4", 500 * KIB, 512 * KIB),  # parts of 256 / 4 = 64 KiB: 320, 384, 448, 512
        ("roundup_power2_divisions:4", 512 * KIB, 512 * KIB),
        ("roundup_power2_divisions:[4:2,>:8]", 5 * MIB, 6 * MIB),  # > says 8 for what is above 4 to 8 MiB
        ("roundup_power2_divisions:[4:2,>:8]", 9 * MIB + 1, 10 * MIB),  # parts of 8 / 8 = 1 MiB
        ("roundup_power2_divisions:[4:2,8:4]", 5 * MIB, 6 * MIB),  # parts of 4 / 2 = 2 MiB
        ("roundup_power2_divisions:[4:2,8:4]", 9 * MIB, 10 * MIB),  # parts of 8 / 4 = 2 MiB: 8, 10
        (
            "roundup_power2_divisions:[4:2,8:4]",
            17 * MIB,
            17 * MIB + MIB,
        ),  # nothing said of 16: 18 - 17 MiB stay with it
        (
            "roundup_power2_divisions:[4:2,8:4]",
            3 * MIB,
            3 * MIB,
        ),  # below the first as the first: parts of 2 / 2 = 1 MiB
        ("roundup_power2_divisions:1", 1200, 1536),
    ],
)
def test_sizes_are_rounded_to_parts_of_powers_of_two(settings: str, size: int, allocated: int) -> None:
    assert last(replay([("alloc", "a", size)], settings))[0] == allocated


def test_a_large_segment_can_have_another_size() -> None:
    done = replay([("alloc", "a", 2 * MIB), ("alloc", "b", 10 * MIB)], "large_segment_size_mb:40")

    assert done.reserved_bytes.tolist() == [40 * MIB, 40 * MIB]


def test_a_memory_fraction_limits_what_is_reserved() -> None:
    # given half of 80 MiB, 30 of it in a free block: 20 more do not fit until it is given back
    events = [("alloc", "a", 30 * MIB), ("free", "a"), ("alloc", "b", 40 * MIB), ("alloc", "c", 1)]
    done = replay(events, "per_process_memory_fraction:0.5", capacity_bytes=80 * MIB)

    assert done.reserved_bytes.tolist() == [30 * MIB, 30 * MIB, 40 * MIB, 40 * MIB]
    assert done.out_of_memory.tolist() == [False, False, False, True]
    assert done.retries.tolist() == [0, 0, 1, 2]


def test_garbage_collection_gives_back_old_large_segments_above_the_threshold() -> None:
    settings = "per_process_memory_fraction:0.5,garbage_collection_threshold:0.5"
    # given 400 MiB: 200 allowed, 100 the threshold; 60 and 50 MiB free, of which the first for one search longer
    events = [*allocs(60 * MIB, 50 * MIB), ("free", 0), ("alloc", "s", 5 * MIB), ("free", "s"), ("free", 1)]

    # when 64 MiB are wanted: 110 MiB reserved are 10 too many. The block of 60 MiB served "s" and is whole again
    done = replay([*events, ("alloc", "a", 64 * MIB)], settings, capacity_bytes=400 * MIB)

    # then both are of the same age, 1 search, and go
    assert last(done) == (64 * MIB, 64 * MIB)
    assert done.retries[-1] == 0


def test_garbage_is_not_collected_without_a_memory_fraction() -> None:
    events = [*allocs(60 * MIB), ("free", 0), ("alloc", "a", 64 * MIB)]
    done = replay(events, "garbage_collection_threshold:0.1", capacity_bytes=400 * MIB)

    assert last(done) == (64 * MIB, 124 * MIB)


def test_an_expandable_segment_grows_by_pages() -> None:
    # given 15 + 15 MiB: pages of 20 MiB, and the second begins in the first page
    done = replay([*allocs(15 * MIB, 15 * MIB, 100)], "expandable_segments:True")

    assert done.reserved_bytes.tolist() == [20 * MIB, 40 * MIB, 42 * MIB]
    assert done.allocated_bytes.tolist() == [15 * MIB, 30 * MIB, 30 * MIB + 512]
    assert done.segments.tolist() == [0, 0, 0]


def test_whole_free_pages_of_an_expandable_segment_are_given_back() -> None:
    # given blocks [0, 30), [30, 35), [35, 80) MiB, when the first is freed, then page [0, 20) is free as a whole
    events = [*allocs(30 * MIB, 5 * MIB, 45 * MIB), ("free", 0), ("empty_cache",), ("alloc", 3, 20 * MIB)]
    done = replay(events, "expandable_segments:True")

    # and 20 MiB then need no more than that page again, joined with the 10 MiB behind it
    assert done.reserved_bytes.tolist()[2:] == [80 * MIB, 80 * MIB, 60 * MIB, 80 * MIB]


def test_no_events_give_empty_statistics() -> None:
    done = replay([])

    assert done.allocated_bytes.tolist() == []
    assert (done.peak_allocated_bytes, done.peak_reserved_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([("free", "x")], r"event 0: given free of 'x'; allowed is a key that was allocated and not freed since; put"),
        ([("alloc", 1, 5), ("alloc", 1, 5)], r"event 1: given a second alloc of 1; allowed is one until it is freed; "),
        ([("alloc", 1, -5)], r"event 0: given -5 bytes; allowed is an int from 0 to 2\*\*63 - 1; write the bytes"),
        ([("alloc", 1, 2.5)], r"event 0: given 2\.5 bytes; allowed is an int"),
        ([("alloc", 1, 5, -1)], r"event 0: given stream -1; allowed is an int from 0; number the streams"),
        ([("alloc", 1)], r"event 0: given \('alloc', 1\); allowed is one of \('alloc', key, bytes\), "),
        ([("alloc", [1], 5)], r"event 0: given key \[1\]; allowed is a key that can be hashed; take a number or a str"),
        ([("allocate", 1, 5)], r"event 0: given \('allocate', 1, 5\); allowed is one of "),
        ([()], r"event 0: given \(\); allowed is one of "),
        ([5], r"event 0: given 5; allowed is one of "),
        ([("record_stream", 1, 1)], r"event 0: given record_stream of 1; allowed is a key that was allocated"),
    ],
)
def test_an_event_that_is_none_is_refused(events: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replay(events)


def test_other_arguments_that_are_not_allowed_are_refused() -> None:
    with pytest.raises(UsageError, match=r"given capacity_bytes=-1; allowed is an int from 0 to 2\*\*63 - 1, or None"):
        replay([], capacity_bytes=-1)
    with pytest.raises(UsageError, match=r"given events_done='never'; allowed are 'at once' and 'at synchronize'"):
        replay([], events_done="never")  # pyright: ignore[reportArgumentType]
