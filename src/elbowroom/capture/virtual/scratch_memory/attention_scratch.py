"""Attention scratch of CUDA's kernels, forward and backward; part of the table in scratch.py.

It was compared with the CUDA build of torch 2.11.0: heads of 32 to 256, 32 to 4,096 rows, capabilities 8.0, 8.6, 9.0.
Shapes: B batch, H heads, S rows of the query, T rows of the key, D size of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

FLOAT = 4


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _rows_first(tensor: torch.Tensor) -> bool:
    """Return whether memory has the order B S H D."""
    B, H, S, D = tensor.shape
    wanted = ((B, S * H * D), (H, D), (S, H * D), (D, 1))
    pairs = zip(wanted, tensor.stride(), strict=True)
    return all(stride == step or size == 1 for (size, step), stride in pairs)


def efficient(call: ScratchCall) -> None:
    """A float result where heads are large and of half precision (attention.cu; rig)."""
    query, value = call.args[0], call.args[2]
    call.out(0, 1)
    if query.dtype is not torch.float32 and value.shape[3] > 128:
        call.temp(call.results[0].numel() * FLOAT)


def efficient_backward(call: ScratchCall) -> None:
    """Sums of grad * out, and the kernel's accumulators (attention_backward.cu, kernel_backward.h; rig)."""
    grad, query, key, value = call.args[:4]
    B, H, S, D = query.shape
    copy = -1 if _rows_first(grad) else call.temp(grad.numel() * grad.element_size())
    call.out(*range(len(call.results)))
    rows = B * H * S * FLOAT
    if query.dtype is torch.float32:
        product = call.temp(B * H * S * value.shape[3] * FLOAT)
        flat = call.temp(rows)
        if H > 1 and S > 1:
            delta = call.temp(rows)
            call.drop(flat, product)
        else:
            delta = flat
            call.drop(product)
    else:
        delta = call.temp(rows)
    workspace = call.temp(B * H * _efficient_elements(S, key.shape[2], D, query.dtype, call) * FLOAT)
    call.drop(delta, workspace, copy)


def packed_efficient_backward(call: ScratchCall) -> None:
    """The same for sequences in a row, one batch of all; each has its part of the accumulators (rig)."""
    grad, query, key, value = call.args[:4]
    _, N, H, D = query.shape
    copy = -1 if grad.is_contiguous() else call.temp(grad.numel() * grad.element_size())
    call.out(0, 1, 2)
    rows = N * H * FLOAT
    product = call.temp(N * H * value.shape[3] * FLOAT) if query.dtype is torch.float32 else -1
    flat = call.temp(rows) if product >= 0 else -1
    delta = call.temp(rows)
    call.drop(flat, product)
    starts, longest, longest_key = call.args[6], call.args[8], call.args[9]
    B, S, T = (key.shape[0], N, key.shape[1]) if starts is None else (starts.numel() - 1, longest, longest_key)
    workspace = call.temp(B * H * _efficient_elements(S, T, D, query.dtype, call) * FLOAT)
    call.drop(delta, workspace, copy)


def packed_flash_backward(call: ScratchCall) -> None:
    """As `flash_backward`, of sequences in a row, each with 128 rows to spare (flash_api.cpp: mha_varlen_bwd; rig)."""
    query, key, starts = call.args[1], call.args[2], call.args[6]
    if starts is None:
        return
    N, H, D = query.shape
    rows = N + 128 * (starts.numel() - 1)
    call.out(0, 1, 2)
    sums = call.temp(H * rows * FLOAT)
    gradient = call.temp(H * rows * _flash_size(D) * FLOAT)
    expanded = key.shape[0] * H * D * query.element_size() if key.shape[1] != H else 0
    first, second = call.temp(expanded), call.temp(expanded)
    call.drop(second, first, gradient, sums)


def _efficient_elements(S: int, T: int, D: int, dtype: torch.dtype, call: ScratchCall) -> int:
    """Floats for each batch and head: blocks of the queries' gradient, each with a lock and a counter."""
    if D <= 64:
        return -(-S // 64) * (64 * 64 + 4)
    small = call.facts.compute_capability in (86, 89, 120, 121)
    if dtype is not torch.float32 and D <= 128 and not (small and D < 128):
        return -(-S // 128) * (128 * 128 + 4)
    blocks = 2 * -(-S // 128) * -(-D // 64) * (64 * 64 + 2)
    if dtype is torch.float32 or D <= 128:
        return blocks
    return blocks + 2 * _up(T, 64) * _up(D, 128)


def flash(call: ScratchCall) -> None:
    """Where blocks are fewer than the GPU takes, keys are split and parts added up (flash_api.cpp; rig)."""
    query, key = call.args[:2]
    dropout = call.args[3] if len(call.args) > 3 else 0.0
    B, H, S, D = query.shape
    call.out(0, 1)
    splits = _flash_splits(B, H, S, key.shape[2], D, call.facts.multiprocessors) if not dropout else 1
    parts = call.temp(splits * B * H * S * FLOAT) if splits > 1 else -1
    results = call.temp(splits * B * H * S * _flash_size(D) * FLOAT) if splits > 1 else -1
    call.out(*range(2, len(call.results)))
    call.drop(parts, results)


def _flash_size(D: int) -> int:
    return _up(D, 32) if D <= 192 else 256


def _flash_splits(B: int, H: int, S: int, T: int, D: int, multiprocessors: int) -> int:
    """The least number of splits that fills the GPU nearly as well as the best does (num_splits_heuristic)."""
    blocks = -(-T // (256 if D <= 64 else 128 if D <= 128 else 64))
    units, room = B * H * -(-S // 64), multiprocessors * 2
    if units >= 0.8 * room:
        return 1
    filled: dict[int, float] = {}
    for splits in range(1, min(128, room, blocks) + 1):
        if splits == 1 or -(-blocks // splits) != -(-blocks // (splits - 1)):
            waves = units * splits / room
            filled[splits] = waves / -(-waves // 1)
    best = max(filled.values())
    return next(splits for splits, part in filled.items() if part >= 0.85 * best)


def flash_backward(call: ScratchCall) -> None:
    """Sums of softmax, a float gradient of the queries, and gradients of keys per query head (flash_api.cpp; rig).

    The gradient and the result are copied where a head's rows do not lie between those of the others.
    """
    query, key = call.args[1], call.args[2]
    B, H, S, D = query.shape
    copies = [call.temp(0 if _rows_first(each) else each.numel() * each.element_size()) for each in call.args[0:5:4]]
    call.out(0, 1, 2)
    sums = call.temp(B * H * _up(S, 128) * FLOAT)
    gradient = call.temp(B * H * _up(S, 128) * _flash_size(D) * FLOAT)
    if key.shape[1] != H:
        expanded = B * H * key.shape[2] * D * query.element_size()
        first, second = call.temp(expanded), call.temp(expanded)
        call.drop(second, first)
    call.drop(gradient, sums, *reversed(copies))


def cudnn(call: ScratchCall) -> None:
    """Seed and offset come first (MHA.cpp; rig)."""
    call.out(2, 3, 0, 1)


def cudnn_backward(call: ScratchCall) -> None:
    """cudnn-frontend's float gradient of the queries and sums of softmax; cuDNN's own workspace is not in it (rig).

    A gradient that does not lie in memory as the result does is copied.
    """
    grad, out = call.args[0], call.args[4]
    B, H, S, D = call.args[1].shape
    call.out(0, 1, 2)
    call.temp(0 if grad.stride() == out.stride() else grad.numel() * grad.element_size())
    call.temp(B * H * S * (D + 1) * FLOAT, workspace=True)


def safe_softmax(call: ScratchCall) -> None:
    """Rows of nothing but minus infinity are found and set to 0 in place (attention.cpp: _safe_softmax; rig)."""
    weights = call.results[0]
    call.out(0)
    mask, rows = call.temp(weights.numel()), call.temp(weights.numel() // max(weights.shape[-1], 1))
    call.drop(call.temp(weights.element_size()), rows, mask)


def rules() -> dict[Any, Any]:
    """The ops of this file."""
    aten: Any = torch.ops.aten
    return {
        aten._safe_softmax.default: safe_softmax,
        aten._scaled_dot_product_efficient_attention.default: efficient,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
        aten._scaled_dot_product_flash_attention.default: flash,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
        aten._efficient_attention_backward.default: packed_efficient_backward,
        aten._flash_attention_backward.default: packed_flash_backward,
        aten._scaled_dot_product_cudnn_attention.default: cudnn,
        aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
    }
