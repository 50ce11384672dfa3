"""The allocator of pinned host memory: powers of two, kept for reuse."""

from __future__ import annotations

import pytest

from elbowroom.allocator import replay_pinned
from elbowroom.errors import UsageError

MIB, GIB = 2**20, 2**30


def test_a_request_is_rounded_up_to_a_power_of_two() -> None:
    sizes = [1, 3, 4096, 4097, 9 * GIB // 4]
    done = replay_pinned([("alloc", key, size) for key, size in enumerate(sizes)])

    # 1 + 4 + 4096 + 8192, then 2.25 GiB as 4 GiB
    assert done.allocated_bytes.tolist() == [1, 5, 4101, 12293, 12293 + 4 * GIB]
    assert done.requested_bytes.tolist()[-1] == 1 + 3 + 4096 + 4097 + 9 * GIB // 4
    assert done.peak_allocated_bytes == done.peak_active_bytes == done.peak_pinned_bytes == 12293 + 4 * GIB


def test_a_freed_block_is_kept_for_requests_of_the_same_power() -> None:
    # given a block of 4 MiB that is freed; 3 MiB take it, 1 MiB do not
    events = [("alloc", "a", 4 * MIB), ("free", "a"), ("alloc", "b", 3 * MIB), ("alloc", "c", MIB)]
    done = replay_pinned(events)

    assert done.allocated_bytes.tolist() == [4 * MIB, 4 * MIB, 4 * MIB, 5 * MIB]
    assert done.active_bytes.tolist() == [4 * MIB, 0, 4 * MIB, 5 * MIB]


def test_a_block_that_a_stream_copies_from_is_reused_only_when_the_stream_is_done() -> None:
    events = [("alloc", "a", MIB), ("record_stream", "a", 0), ("free", "a"), ("alloc", "b", MIB)]

    soon = replay_pinned(events)
    late = replay_pinned([*events, ("synchronize",), ("alloc", "c", MIB)], events_done="at synchronize")

    assert soon.allocated_bytes.tolist() == [MIB] * 4
    assert late.allocated_bytes.tolist() == [MIB, MIB, MIB, 2 * MIB, 2 * MIB, 2 * MIB]
    assert late.active_bytes.tolist() == [MIB, MIB, MIB, 2 * MIB, 2 * MIB, 2 * MIB]


def test_empty_cache_gives_back_what_is_not_in_use() -> None:
    events = [("alloc", "a", MIB), ("alloc", "b", 2 * MIB), ("free", "a"), ("empty_cache",)]

    assert replay_pinned(events).allocated_bytes.tolist() == [MIB, 3 * MIB, 3 * MIB, 2 * MIB]


def test_large_blocks_can_be_left_unrounded_and_uncached() -> None:
    settings = "pinned_max_round_threshold_mb:16,pinned_max_cached_size_mb:32"
    events = [("alloc", "a", 20 * MIB), ("alloc", "b", 40 * MIB), ("free", "a"), ("free", "b"), ("alloc", "c", 9 * MIB)]

    # 20 and 40 MiB stay as they are; when freed the first is kept, the second given back; 9 become 16
    done = replay_pinned(events, settings)
    assert done.allocated_bytes.tolist() == [20 * MIB, 60 * MIB, 60 * MIB, 20 * MIB, 36 * MIB]


def test_small_blocks_are_carved_from_a_reserved_segment_while_it_lasts() -> None:
    events = [("alloc", "a", MIB), ("alloc", "b", MIB), ("alloc", "c", MIB), ("free", "a"), ("empty_cache",)]
    done = replay_pinned(events, "pinned_reserve_segment_size_mb:2")

    assert done.allocated_bytes.tolist() == [MIB, 2 * MIB, 3 * MIB, 3 * MIB, 2 * MIB]
    assert done.pinned_bytes.tolist() == [2 * MIB, 2 * MIB, 3 * MIB, 3 * MIB, 3 * MIB]


def test_a_capacity_that_is_reached_fails_the_request() -> None:
    done = replay_pinned([("alloc", "a", 3 * MIB), ("alloc", "b", 1), ("free", "b")], capacity_bytes=4 * MIB)

    assert done.out_of_memory.tolist() == [False, True, False]
    assert done.allocated_bytes.tolist() == [4 * MIB] * 3


def test_an_event_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"event 0: given free of 'x'; allowed is a key that was allocated"):
        replay_pinned([("free", "x")])
    with pytest.raises(UsageError, match=r"event 0: given \('pin', 1\); allowed is one of "):
        replay_pinned([("pin", 1)])
