"""Settings of the allocator as people write them in PYTORCH_ALLOC_CONF."""

from __future__ import annotations

import doctest

import pytest

from elbowroom.allocator import AllocatorSettings, parse_settings, settings
from elbowroom.errors import UsageError

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AllocatorSettings()),
        (" , ", AllocatorSettings()),
        ("backend:native", AllocatorSettings()),
        ("max_split_size_mb:128", AllocatorSettings(max_split_bytes=128 * MIB)),
        ("max_non_split_rounding_mb:30", AllocatorSettings(max_non_split_rounding_bytes=30 * MIB)),
        (" expandable_segments : True ", AllocatorSettings(expandable_segments=True)),
        ("expandable_segments:False", AllocatorSettings()),
        ("garbage_collection_threshold:0.8", AllocatorSettings(garbage_collection_threshold=0.8)),
        ("per_process_memory_fraction:1", AllocatorSettings()),
        ("per_process_memory_fraction:0.25", AllocatorSettings(memory_fraction=0.25)),
        ("max_split_size_mb:64,max_split_size_mb:32", AllocatorSettings(max_split_bytes=32 * MIB)),
        (
            "large_segment_size_mb:40",
            AllocatorSettings(large_segment_bytes=40 * MIB, max_non_split_rounding_bytes=40 * MIB),
        ),
        ("roundup_power2_divisions:8", AllocatorSettings(roundup_divisions=(8,) * 16)),
        # 256 MiB is the power 8 above 1 MiB: the first value counts below it too
        (
            "roundup_power2_divisions:[256:1,512:2,2048:8]",
            AllocatorSettings(roundup_divisions=(1,) * 9 + (2, 0, 8) + (0,) * 4),
        ),
        ("roundup_power2_divisions:[512:2,>:4]", AllocatorSettings(roundup_divisions=(2,) * 10 + (4,) * 6)),
        ("roundup_power2_divisions:[2:0,4:2]", AllocatorSettings(roundup_divisions=(0, 0, 2) + (0,) * 13)),
        (
            "max_split_size_mb:64,pinned_use_background_threads:True,pinned_num_register_threads:8",
            AllocatorSettings(max_split_bytes=64 * MIB),
        ),
        (
            "pinned_max_round_threshold_mb:16,pinned_max_cached_size_mb:64,pinned_reserve_segment_size_mb:8",
            AllocatorSettings(),
        ),
    ],
)
def test_settings_are_read(text: str, expected: AllocatorSettings) -> None:
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_mb:1", r"given 'max_split_mb' in 'max_split_mb:1'; allowed is a key among backend, expandable_seg"),
        ("max_split_size_mb", r"given 'max_split_size_mb'; allowed is max_split_size_mb:VALUE"),
        ("max_split_size_mb:", r"allowed is max_split_size_mb:VALUE"),
        (
            "max_split_size_mb:big",
            r"given 'max_split_size_mb:big'; allowed is a whole number of MiB, at least 1; write",
        ),
        ("max_split_size_mb:19", r"given 'max_split_size_mb:19'; allowed is at least 20, the size of a large segment"),
        ("max_split_size_mb:30,large_segment_size_mb:40", r"allowed is at least 40, the size of a large segment"),
        ("max_non_split_rounding_mb:19", r"allowed is at least 20"),
        (
            "large_segment_size_mb:10",
            r"given 'large_segment_size_mb:10'; allowed is a whole number of MiB, at least 11",
        ),
        ("expandable_segments:true", r"given 'expandable_segments:true'; allowed is True or False, spelt like this"),
        ("garbage_collection_threshold:1", r"allowed is a number above 0 and below 1"),
        ("garbage_collection_threshold:nan", r"allowed is a number above 0 and below 1"),
        ("garbage_collection_threshold:x", r"allowed is a number above 0 and below 1"),
        ("per_process_memory_fraction:1.5", r"allowed is a number from 0 to 1;"),
        ("backend:cudaMallocAsync", r"allowed is native: cudaMallocAsync is the driver's own allocator, which has no"),
        ("roundup_power2_divisions:3", r"allowed is a power of two as the divisions"),
        ("roundup_power2_divisions:0", r"allowed is a power of two as the divisions"),
        ("roundup_power2_divisions:[3:4]", r"allowed is powers of two \(of MiB\) before the colons, or >"),
        ("roundup_power2_divisions:[4:3]", r"allowed is a power of two, or 0 for no rounding, as the divisions"),
        ("roundup_power2_divisions:[4]", r"allowed is pairs as in \[256:1,512:2,>:4\]"),
        ("roundup_power2_divisions:[4:2", r"allowed is a list that ends with \]"),
        ("roundup_power2_divisions:[[4:2]]", r"allowed is a list as in \[256:1,512:2,>:4\], not nested"),
        ("pinned_num_register_threads:3", r"allowed is a power of two"),
    ],
)
def test_settings_that_are_not_allowed_are_refused_with_what_is(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_settings(text)


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(settings).failed == 0
