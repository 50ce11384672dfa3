"""Sorting scratch of CUDA ops that sort, scan or count with cub; part of the table in scratch.py.

cub's temporary bytes were measured in the CUDA build of torch 2.11.0. On capability 9.0 there were 100 to 1,000,000
elements, and the tiles that explain all these bytes were found. On 8.0 and 8.6 keys of 4 and 8 bytes were measured, at
5,000, 100,000 and 1,000,000 elements. 8.9 was not measured: that build has no code for it and runs that for 8.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

INDEX = 8
SLACK = 511
PASS_BYTES, TILE_BYTES = 2048, 1024
SMALL_SORT = 2304
"""Most elements that one block sorts, which takes one byte."""


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // 256) * 256


TILES = {8: 4608, 4: 5376, 2: 5632, 1: 3456}
TILES_BEFORE_90 = {8: 3840, 4: 3072}
"""Elements of a tile by bytes of a key. Shorter keys are taken to need as much as on 9.0, and need more (rig, 100,000
keys of 2 bytes: 1.1 MB more on 8.0, 0.9 MB more on 8.6)."""


def pairs_bytes(count: int, key_bytes: int, key_bits: int, compute_capability: int = 90) -> int:
    """Radix sort of keys with int64 values: second buffers, a histogram for each 8 bits, a row for each tile."""
    if count <= SMALL_SORT:
        return 1
    tile = (TILES if compute_capability >= 90 else TILES | TILES_BEFORE_90)[key_bytes]
    tables = -(-key_bits // 8) * PASS_BYTES + -(-count // tile) * TILE_BYTES
    if key_bits <= 8:
        return tables + SLACK
    return _aligned(count * key_bytes) + _aligned(count * INDEX) + tables + SLACK


SCAN_TILE, SUM_TILE = 4608, 896
"""Elements of a tile of cumsum, and of an exclusive sum, the latter the same on 8.0, 8.6 and 9.0 (rig)."""


def scan_bytes(count: int, tile: int = SCAN_TILE) -> int:
    """A scan or a unique_by_key: 16 bytes of state for each tile and a warp more."""
    return _aligned((32 + -(-count // tile)) * 16) + SLACK


def unique_tile(compute_capability: int) -> int:
    """Elements of a tile of unique_by_key, found on 8.0, 8.6 and 9.0 from 20,000 to 1,000,000 elements (rig)."""
    if compute_capability >= 90:
        return SCAN_TILE
    return 320 if compute_capability >= 86 else 1792


def _pairs(call: ScratchCall, count: int, key_bytes: int, key_bits: int) -> int:
    return pairs_bytes(count, key_bytes, key_bits, call.facts.compute_capability)


def index(call: ScratchCall) -> None:
    """Positions of 4 bytes become those of 8 (IndexingUtils.h: expandTensors; rig)."""
    copies = _wide_positions(call)
    call.out(0)
    call.drop(*reversed(copies))


def _wide_positions(call: ScratchCall) -> list[int]:
    given = [each for each in call.args[1] if each is not None and each.dtype is torch.int32]
    return [call.temp(each.numel() * INDEX) for each in given]


def index_put(call: ScratchCall) -> None:
    """With accumulate: linear positions, sorted (Indexing.cu: index_put_with_sort_kernel; rig)."""
    given: tuple[Any, ...] = (*call.args, False)
    target, indices, values, accumulate = given[:4]
    call.out(*range(len(call.results)))
    wide = _wide_positions(call)
    if not accumulate or any(each is not None and each.dtype is torch.bool for each in indices):
        return
    present = [each for each in indices if each is not None]
    count = max(each.numel() for each in present)
    size = count * INDEX
    linear = -1
    for each in present:
        wrapped = call.temp(each.numel() * INDEX)
        position = call.temp(each.numel() * INDEX)
        call.drop(wrapped)
        if linear < 0:
            linear = position
        else:
            call.drop(position)
    call.drop(*reversed(wide))
    elements = 1
    for dim in range(len(indices), target.dim()):
        elements *= target.shape[dim]
    leading = indices[0] is None
    moved = (leading and values.dim() > 1) or not values.is_contiguous()
    copy = call.temp(values.numel() * values.element_size()) if moved else -1
    sorted_, origin, numbers = call.temp(size), call.temp(size), call.temp(size)
    bits = max((target.numel() // max(elements, 1)).bit_length(), 1)
    call.drop(call.temp(_pairs(call, count, 8, bits)), numbers, origin, sorted_)
    call.drop(copy, linear)


def embedding(call: ScratchCall) -> None:
    """Indices in one row (Embedding.cpp; rig)."""
    indices = call.args[1]
    copy = call.temp(_copy_bytes(indices) if indices.dim() != 1 else 0)
    call.out(0)
    call.drop(copy)


def embedding_backward(call: ScratchCall) -> None:
    """Long inputs are sorted, then summed in segments (Embedding.cu, EmbeddingBackwardKernel.cu; rig)."""
    given: tuple[Any, ...] = (*call.args, -1, False)
    grad, indices, weights, _padding, by_frequency = given[:5]
    copy, row = call.temp(_copy_bytes(grad)), call.temp(_copy_bytes(indices))
    if indices.numel() > 3072 or by_frequency:
        _sorted_sum(call, grad, indices, weights)
    call.out(0)
    call.drop(row, copy)


def embedding_bag_backward(call: ScratchCall) -> None:
    """Sorted at any length, but for the mode "max" (EmbeddingBag.cu; rig)."""
    grad, indices = call.args[:2]
    composite = call.func is torch.ops.aten._embedding_bag_backward.default
    weights, mode = (call.args[6], call.args[8]) if composite else (call.args[5], call.args[7])
    if composite and call.args[9]:  # sparse: rows of the gradient, and what a mean divides them by
        call.out(0)
        if mode == 1:
            item, bags = grad.element_size(), call.args[4].numel()
            counts, inverse, each = call.temp(bags * item), call.temp(bags * item), call.temp(indices.numel() * item)
            call.drop(inverse, counts, each)
        return
    copy = call.temp(_copy_bytes(grad))
    if mode != 2:
        _sorted_sum(call, grad, indices, weights)
    call.out(0)
    call.drop(copy)


def _copy_bytes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_contiguous() else tensor.numel() * tensor.element_size()


def _sorted_sum(call: ScratchCall, grad: torch.Tensor, indices: torch.Tensor, weights: int) -> None:
    count = indices.numel()
    size = count * indices.element_size()
    order, origin, numbers = call.temp(size), call.temp(size), call.temp(size)
    call.drop(call.temp(_pairs(call, count, indices.element_size(), 64)), numbers)
    call.out(0)
    segments = min(count, weights)
    offsets, how_many, starts = call.temp(size), call.temp(INDEX), call.temp(size)
    call.drop(call.temp(scan_bytes(count, unique_tile(call.facts.compute_capability))), starts)
    parts, places = call.temp(segments * INDEX), call.temp(segments * INDEX)
    call.drop(call.temp(scan_bytes(segments, SUM_TILE)))
    most = call.temp(INDEX)
    pieces = count // 10 + segments
    # Few rows that come up often are summed otherwise; where that begins was measured only roughly.
    few, width = segments <= 640 and segments * 25 <= count, grad.shape[-1]
    floats = min(width, 2) if few else width
    where, sums = call.temp(pieces * INDEX), call.temp(pieces * floats * 4)
    if few and grad.element_size() < 4:
        call.drop(call.temp(weights * width * 4))
    call.drop(sums, where, most, places, parts, how_many, offsets, origin, order)


def sort(call: ScratchCall) -> None:
    """Up to 4,096 elements a row in one block, more by cub (Sort.cu; rig); rows of more than that, roughly."""
    tensor = call.args[0]
    names = [each for each in call.args[1:] if isinstance(each, int) and not isinstance(each, bool)]
    dim = names[0] if names else call.kwargs.get("dim", -1)
    row = tensor.shape[dim] if tensor.dim() else 1
    call.out(0, 1)
    numbers = call.temp(row * INDEX)
    if row > 4096:
        bits = tensor.element_size() * 8
        call.drop(call.temp(_pairs(call, tensor.numel(), tensor.element_size(), bits)))
    call.drop(numbers)


def cumulate(call: ScratchCall) -> None:
    """A scan of one dimension is cub's (ScanKernels.cpp; rig)."""
    tensor, made = call.args[0], call.results[0]
    call.out(0)
    if tensor.dtype is not made.dtype:
        call.drop(call.temp(made.numel() * made.element_size()))
    if tensor.dim() == 1:
        call.drop(call.temp(scan_bytes(tensor.numel()) if tensor.element_size() == 8 else 1023))


def nonzero(call: ScratchCall) -> None:
    """A count, then the positions (Nonzero.cu; rig)."""
    how_many = call.temp(4)
    call.drop(call.temp(1 if call.args[0].numel() <= 4096 else 5631))
    call.out(0)
    call.drop(call.temp(1023), how_many)


def rules() -> dict[Any, Any]:
    """The ops of this file."""
    aten: Any = torch.ops.aten
    return {
        aten.index.Tensor: index,
        aten.index_put.default: index_put,
        aten.index_put_.default: index_put,
        aten.embedding.default: embedding,
        aten.embedding_dense_backward.default: embedding_backward,
        aten._embedding_bag_backward.default: embedding_bag_backward,
        aten._embedding_bag_dense_backward.default: embedding_bag_backward,
        aten.sort.default: sort,
        aten.sort.stable: sort,
        aten.cumsum.default: cumulate,
        aten.cumprod.default: cumulate,
        aten.nonzero.default: nonzero,
    }
