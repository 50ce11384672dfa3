"""Replays within capacities give what a replay from the first event gives, up to the first failure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.allocator import replay
from elbowroom.allocator.replay import Event
from elbowroom.allocator.within import CapacityReplays

MIB = 2**20
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.5")
SETTINGS += ("per_process_memory_fraction:0.5,garbage_collection_threshold:0.5",)
SIZES = st.sampled_from([1, 700, 70_000, MIB, 3 * MIB, 9 * MIB, 11 * MIB, 40 * MIB, 100 * MIB])


@st.composite
def trainings(draw: st.DrawFn) -> list[Event]:
    """Allocations, and frees of what is live, with some points at which the cache is emptied."""
    events: list[Event] = []
    live: list[int] = []
    for key, (size, frees, empties) in enumerate(
        draw(st.lists(st.tuples(SIZES, st.integers(0, 2), st.integers(0, 15)), min_size=1, max_size=60))
    ):
        events.append(("alloc", key, size))
        live.append(key)
        places = [draw(st.integers(0, len(live) - 1 - n)) for n in range(min(frees, len(live)))]
        events += [("free", live.pop(place)) for place in places]
        events += [("empty_cache",)] if not empties else []
    return events


@pytest.mark.parametrize("settings", SETTINGS)
@given(events=trainings(), shares=st.lists(st.integers(0, 120), min_size=1, max_size=3))
def test_a_replay_that_begins_where_memory_runs_short_is_equal(
    settings: str, events: list[Event], shares: list[int]
) -> None:
    free = replay(events, settings)
    least = free.peak_allocated_bytes
    again = CapacityReplays(events, settings, free, least_bytes=least)
    for share in shares:
        capacity = least + (free.peak_reserved_bytes - least) * share // 100
        found, expected = again.replay(capacity), replay(events, settings, capacity)
        failed = np.flatnonzero(expected.out_of_memory)
        end = int(failed[0]) + 1 if len(failed) else len(events)
        for name in ("allocated_bytes", "reserved_bytes", "retries", "out_of_memory", "segments"):
            assert np.array_equal(getattr(found, name)[:end], getattr(expected, name)[:end])


def test_a_capacity_below_the_least_is_replayed_from_the_first_event() -> None:
    events: list[Event] = [("alloc", "w", 30 * MIB), ("free", "w"), ("alloc", "x", 40 * MIB)]
    again = CapacityReplays(events, "", replay(events), least_bytes=40 * MIB)
    assert again.replay(35 * MIB).out_of_memory.tolist() == [False, False, True]
    assert again.replay(40 * MIB).retries.tolist() == [0, 0, 1]


def test_a_failure_of_what_is_spared_ends_nothing() -> None:
    events: list[Event] = [("alloc", "w", 30 * MIB), ("free", "w"), ("alloc", "x", 10 * MIB)]
    again = CapacityReplays(events, "", replay(events), least_bytes=20 * MIB, spared={"w"})
    assert again.replay(20 * MIB).allocated_bytes.tolist() == [0, 0, 10 * MIB]
