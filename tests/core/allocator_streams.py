"""Random event streams for the allocator: what a training does, made harder, for every setting."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from elbowroom.allocator.statistics import Replay, inactive_split

MIB = 2**20
GIB = 2**30

SETTINGS = (
    "",
    "max_split_size_mb:24",
    "max_split_size_mb:40",
    "max_split_size_mb:24,max_non_split_rounding_mb:30",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,16:1,>:4]",
    "roundup_power2_divisions:[2:4,32:8]",
    "roundup_power2_divisions:[>:8]",
    "large_segment_size_mb:40",
    "large_segment_size_mb:11",
    "large_segment_size_mb:11,max_split_size_mb:24",
    "large_segment_size_mb:40,max_split_size_mb:40",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:24",
    "expandable_segments:True,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:0.8,garbage_collection_threshold:0.3",
    "per_process_memory_fraction:0.9,garbage_collection_threshold:0.6",
    "per_process_memory_fraction:0.9,garbage_collection_threshold:0.2,max_split_size_mb:24",
    "per_process_memory_fraction:0.7,expandable_segments:True",
    "per_process_memory_fraction:0.7,expandable_segments:True,garbage_collection_threshold:0.3",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Events, and what they are to be replayed with."""

    events: list[tuple[Any, ...]]
    settings: str
    capacity_bytes: int
    events_done: Literal["at once", "at synchronize"]


def random_stream(seed: int, length: int = 80, settings: str | None = None) -> Stream:
    """A stream that is the same for the same seed.

    Args:
        seed: of the random numbers.
        length: number of events.
        settings: None draws one of `SETTINGS`.
    """
    draw = random.Random(seed)
    if settings is None:
        settings = draw.choice(SETTINGS)
    capacity_bytes = draw.choice([64 * MIB, 100 * MIB, 150 * MIB, 222 * MIB, 300 * MIB, 600 * MIB, 16 * GIB])
    sizes = [_size(draw) for _ in range(draw.choice([3, 8, 30]))]
    streams = draw.choice([1, 1, 2, 3])
    free_share = draw.choice([0.3, 0.45, 0.5])
    record_share, rare_share = draw.choice([0.0, 0.0, 0.1, 0.3]), draw.choice([0.0, 0.02, 0.1])
    events: list[tuple[Any, ...]] = []
    live: list[int] = []
    while len(events) < length:
        if live and draw.random() < record_share:
            events.append(("record_stream", draw.choice(live), draw.randrange(max(streams, 2))))
        elif draw.random() < rare_share:
            events.append(draw.choice([("synchronize",), ("empty_cache",)]))
        elif live and draw.random() < free_share:
            events.append(("free", live.pop(draw.randrange(len(live)))))
        else:
            size = draw.choice(sizes) if draw.random() < 0.8 else _size(draw)
            live.append(len(events))
            events.append(("alloc", len(events), size, draw.randrange(streams)))
    done: Literal["at once", "at synchronize"] = "at synchronize" if draw.random() < 0.4 else "at once"
    return Stream(events=events, settings=settings, capacity_bytes=capacity_bytes, events_done=done)


def _size(draw: random.Random) -> int:
    """Sizes on both sides of every border the rules have."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.choice([0, 1, 511, 512, 513, 4096])
    if kind == 1:
        return draw.randrange(1, 2**20)
    if kind == 2:
        return draw.choice([1, 2, 4, 8, 10, 12, 16, 20, 24, 32, 40, 64]) * MIB + draw.choice([-512, -1, 0, 1, 512])
    if kind == 3:
        return draw.randrange(30 * MIB, 90 * MIB)
    return draw.randrange(1, 12 if kind < 6 else 36) * MIB + draw.choice([0, 0, draw.randrange(MIB)])


def at_end(done: Replay) -> dict[str, int]:
    """What a replay comes to at its end, by the names of torch.cuda.memory_stats."""
    splits = inactive_split(done._device)
    driver_bytes = done.driver_bytes()[:, 1]
    return {
        "allocated_bytes.all.peak": done.peak_allocated_bytes,
        "reserved_bytes.all.peak": done.peak_reserved_bytes,
        "active_bytes.all.peak": int(done.active_bytes.max(initial=0)),
        "inactive_split_bytes.all.current": splits["inactive_split_bytes.all.current"],
        "num_alloc_retries": int(done.retries[-1]),
        "num_ooms": int(done.out_of_memory.sum()),
        "num_device_alloc": int((driver_bytes > 0).sum()),
        "num_device_free": int((driver_bytes < 0).sum()),
    }
