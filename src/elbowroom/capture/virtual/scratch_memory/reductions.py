"""Reductions: when and how CUDA splits a reduction over thread blocks, which then meet in global memory.

It follows aten/src/ATen/native/cuda/Reduce.cuh (`setReduceConfig`) and TensorIterator's order of dimensions. It was
compared with the CUDA build of torch 2.11.0. Ignored: inputs of 2**31 bytes and more, which are first split into
several launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

WARP = 32
MOST_THREADS = 512
INPUT_VECTOR = 4
LEAST_VALUES, MOST_VALUES = 16, 256
"""Values per thread that a split aims at."""

THREADS_OF_SM = {75: 1024, 86: 1536, 89: 1536, 120: 1536, 121: 1536}
"""Most threads of a multiprocessor by compute capability; 2048 on all others (CUDA programming guide)."""


def partial_bytes(dtype: torch.dtype) -> int:
    """Bytes of a partial sum: half precision is summed in float, small integers in int64."""
    if dtype in (torch.float16, torch.bfloat16):
        return 4
    return dtype.itemsize if dtype.is_floating_point or dtype.is_complex else 8


class Scratch(NamedTuple):
    """Bytes of partial results and of the counters of finished blocks; (0, 0) if one launch does it all."""

    partial_bytes: int
    counter_bytes: int


class _Dim(NamedTuple):
    size: int
    stride: int
    out_stride: int


@dataclass(slots=True)
class _Split:
    """How threads share the work; the names are those of the launch."""

    width: int = 1
    height: int = 1
    step_input: int = 1
    step_output: int = 1


def scratch(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    partial_item_bytes: int,
    multiprocessors: int,
    compute_capability: int,
    values_at_once: int = 4,
) -> Scratch:
    """Scratch of one reduction.

    Args:
        shape: shape of the input.
        strides: strides of the input, in elements.
        reduced: dimensions that vanish; empty for all.
        partial_item_bytes: bytes of a partial result, such as 4 for a sum of half precision.
        multiprocessors: number of the GPU's multiprocessors.
        compute_capability: that of the GPU, major * 10 + minor.
        values_at_once: the kernel's `vt0`.
    """
    if 0 in shape:
        return Scratch(0, 0)
    dims = _order(shape, strides, reduced)
    inner = sum(1 for dim in dims if not dim.out_stride)
    outputs = prod(dim.size for dim in dims[inner:])
    inputs = prod(dim.size for dim in dims[:inner])
    along = not dims or inner == len(dims) or dims[0].stride < dims[inner].stride
    first, second = (inputs, outputs) if along else (outputs, inputs)
    if not dims:
        first = second = 1
    vector = 1
    dense = not dims or (dims[0] if along else dims[inner]).stride == 1
    if dense and along and first > 128 and inner == 1 and values_at_once >= INPUT_VECTOR:
        first //= INPUT_VECTOR
    elif dense and not along:
        vector = _output_vector(dims, inner)
        first //= vector
    split = _blocks(first, second, vector, along)
    return _over_blocks(split, inputs, outputs, vector, along, partial_item_bytes, multiprocessors, compute_capability)


def _blocks(first: int, second: int, vector: int, along: bool) -> _Split:
    most = MOST_THREADS // vector
    across, down = _power_below(first, most), _power_below(second, most)
    split = _Split(width=min(across, WARP))
    split.height = min(down, most // split.width)
    split.width = min(across, most // split.height)
    if along:
        split.step_input *= split.width
    else:
        split.step_output *= split.width
    return split


def _over_blocks(
    split: _Split,
    inputs: int,
    outputs: int,
    vector: int,
    along: bool,
    partial_item_bytes: int,
    multiprocessors: int,
    compute_capability: int,
) -> Scratch:
    values = -(-inputs // split.step_input)
    if values < split.height * LEAST_VALUES and values < MOST_VALUES:
        return Scratch(0, 0)
    split.step_input *= split.height
    values = -(-inputs // split.step_input)
    threads = THREADS_OF_SM.get(compute_capability, 2048)
    target = multiprocessors * (threads // (split.width * split.height))
    grid = -(-(outputs // vector) // split.step_output)
    if values < MOST_VALUES or grid > target:
        return Scratch(0, 0)
    blocks = max(min(-(-target // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if blocks <= 1:
        return Scratch(0, 0)
    partial = partial_item_bytes * outputs * blocks
    return Scratch(partial if along else partial * split.width * vector, 4 * grid)


def _power_below(size: int, most: int) -> int:
    return most if size >= most else 1 << max(size.bit_length() - 1, 0)


def _output_vector(dims: list[_Dim], inner: int) -> int:
    vector = 4
    for number in [dims[inner].size, *(dim.stride for index, dim in enumerate(dims) if index != inner)]:
        while vector > 1 and number % vector:
            vector //= 2
    return vector


def _order(shape: Sequence[int], strides: Sequence[int], reduced: Sequence[int]) -> list[_Dim]:
    """Order dimensions: reduced ones first, each group from the least stride up, neighbours merged if possible."""
    count = len(shape)
    gone = {dim % count for dim in reduced} if count and len(reduced) else set(range(count))
    out_strides = [0] * count
    step = 1
    for dim in sorted((d for d in range(count) if d not in gone), key=lambda d: (strides[d], shape[d])):
        out_strides[dim] = step
        step *= shape[dim]
    dims = [_Dim(*each) for each in zip(shape, strides, out_strides, strict=True) if each[0] != 1]
    dims.sort(key=lambda dim: (dim.out_stride != 0, dim.stride, dim.size))
    merged: list[_Dim] = []
    for dim in dims:
        last = merged[-1] if merged else None
        if last is not None and last.size * last.stride == dim.stride and last.size * last.out_stride == dim.out_stride:
            merged[-1] = last._replace(size=last.size * dim.size)
        else:
            merged.append(dim)
    return merged
