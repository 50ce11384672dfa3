"""Durations of recorded ops on a GPU: a model's, with the shapes that were recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.capture.device_durations import device_ns
from elbowroom.capture.drafts import OpDraft, StorageDraft, flops_of
from elbowroom.capture.durations.costs import LAUNCH_NS
from elbowroom.capture.recording.profiler_stream import OpSeen, RecordedBlock
from elbowroom.machine import Machine

MIB = 2**20
GPU = Machine.of("h200")
"""4,800 GB/s, of which 90 % are reached."""
HOST_NS = 300_000


def recorded(name: str, shapes: list[tuple[int, ...]], sizes: list[int], dtype: str = "float32") -> OpDraft:
    """An op that reads storages of these sizes, the last of which it makes, and that the host issues in 300 us."""
    blocks = [RecordedBlock(address, size, dtype) for address, size in enumerate(sizes[:-1], start=1)]
    seen = OpSeen(
        name=name,
        reads=tuple(blocks),
        writes=(),
        node=0,
        backward=False,
        arguments=tuple(shapes),
        start_ns=0,
        end_ns=HOST_NS,
    )
    last = len(sizes) - 1
    return OpDraft(seen, "", "forward", tuple(range(last)), (last,))


def ns(op: OpDraft, sizes: list[int], machine: Machine = GPU, dtype: str = "float32") -> int | None:
    storages = [StorageDraft(size, "activation", dtype, from_stream=False) for size in sizes]
    return device_ns(op, flops_of(op, storages), storages, machine)


def test_an_elementwise_op_takes_the_time_of_its_bytes() -> None:
    # given 64 MiB that are read and 64 MiB that are made: 128 MiB at 4,320 GB/s
    sizes = [64 * MIB, 64 * MIB]
    op = recorded("aten.relu", [(16, MIB)], sizes)
    # then
    assert ns(op, sizes) == pytest.approx(128 * MIB / 4.32e12 * 1e9, rel=1e-3)


def test_a_small_op_takes_no_less_than_its_launch_whatever_the_host_took() -> None:
    op = recorded("aten.relu", [(4,)], [512, 512])
    assert ns(op, [512, 512]) == LAUNCH_NS


def test_a_product_takes_the_time_of_its_operations() -> None:
    # given 8192 x 8192 times 8192 x 8192 in bfloat16: 1.1e12 operations at 70 % of 989.5e12 a second
    sizes = [128 * MIB] * 3
    op = recorded("aten.mm", [(8192, 8192), (8192, 8192)], sizes, "bfloat16")
    found = ns(op, sizes, dtype="bfloat16")
    # then: 1.587 ms, and what the last wave of 4,096 tiles on 132 multiprocessors leaves idle
    assert found is not None
    assert 1.587e6 <= found <= 1.1 * 1.587e6


def test_a_convolution_that_fills_few_multiprocessors_is_slower_than_its_operations() -> None:
    # given 2 images of 8 x 8: 128 points, one tile
    sizes = [2 * 256 * 8 * 8 * 4, 256 * 256 * 9 * 4, 2 * 256 * 8 * 8 * 4]
    shapes = [(2, 256, 8, 8), (256, 256, 3, 3)]
    few = ns(recorded("aten.convolution", shapes, sizes), sizes)
    # and 64 times as many
    sizes = [64 * sizes[0], sizes[1], 64 * sizes[2]]
    many = ns(recorded("aten.convolution", [(128, 256, 8, 8), (256, 256, 3, 3)], sizes), sizes)
    # then
    assert few is not None
    assert many is not None
    assert many < 40 * few


def test_without_the_rates_of_the_gpu_nothing_is_said() -> None:
    op = recorded("aten.relu", [(16, MIB)], [64 * MIB, 64 * MIB])
    assert ns(op, [64 * MIB, 64 * MIB], replace(GPU, rates=())) is None
    assert ns(op, [64 * MIB, 64 * MIB], replace(GPU, memory_bytes_per_s=0)) is None
