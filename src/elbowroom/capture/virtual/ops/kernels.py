"""Kernels: results of ops whose meta kernel is missing, differs from CUDA, or takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.capture.virtual.ops import ctc, grouped, ram_ops, recurrent, sparse, synced_norms
from elbowroom.capture.virtual.ops.layouts import convolution_layout
from elbowroom.capture.virtual.tensor import CPU, META, virtual
from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice

aten: Any = torch.ops.aten


def _cudnn_batch_norm(reserve_bytes: Callable[[tuple[int, ...], int], int]) -> Callable[..., Any]:
    def run(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        mean: torch.Tensor | None,
        var: torch.Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[torch.Tensor, ...]:
        saved = weight.shape[0] if training else 0
        reserve = reserve_bytes(tuple(input.shape), input.element_size()) if training else 0
        return (
            torch.empty_like(input),
            torch.empty(saved, dtype=weight.dtype, device="meta"),
            torch.empty(saved, dtype=weight.dtype, device="meta"),
            torch.empty(reserve, dtype=torch.uint8, device="meta"),
        )

    return run


def _cudnn_batch_norm_backward(
    input: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, *_others: Any
) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(input), torch.empty_like(weight), torch.empty_like(weight)


def _accumulates(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _native_layer_norm(
    input: torch.Tensor, shape: list[int], weight: Any, bias: Any, eps: float
) -> tuple[torch.Tensor, ...]:
    outer = tuple(input.shape[: input.dim() - len(shape)]) + (1,) * len(shape)
    dtype = _accumulates(input.dtype)
    statistics = [torch.empty(outer, dtype=dtype, device="meta") for _ in range(2)]
    return (torch.empty_like(input, memory_format=torch.contiguous_format), *statistics)


def _fused_rms_norm(input: torch.Tensor, shape: list[int], weight: Any, eps: Any) -> tuple[torch.Tensor, ...]:
    outer = tuple(input.shape[: input.dim() - len(shape)]) + (1,) * len(shape)
    statistics = torch.empty(outer, dtype=_accumulates(input.dtype), device="meta")
    return torch.empty_like(input, memory_format=torch.contiguous_format), statistics


def _fused_rms_norm_backward(
    grad: torch.Tensor, input: torch.Tensor, shape: list[int], rstd: torch.Tensor, weight: Any, mask: list[bool]
) -> tuple[Any, ...]:
    like = torch.contiguous_format
    return (
        torch.empty_like(input, memory_format=like) if mask[0] else None,
        torch.empty_like(weight, memory_format=like) if mask[1] and weight is not None else None,
    )


def _native_layer_norm_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mask: list[bool],
) -> tuple[Any, ...]:
    like = torch.contiguous_format
    return (
        torch.empty_like(input, memory_format=like) if mask[0] else None,
        torch.empty_like(weight, memory_format=like) if mask[1] and weight is not None else None,
        torch.empty_like(bias, memory_format=like) if mask[2] and bias is not None else None,
    )


def _native_dropout(input: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


def _native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(grad)


def _efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    saves: bool,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    batch, heads, rows = query.shape[:3]
    out = query.new_empty((batch, rows, heads, value.shape[3])).transpose(1, 2)
    saved = query.new_empty((batch, heads, -(-rows // 32) * 32 if saves else 0), dtype=torch.float32)
    return (out, saved, *_on_host())


def _on_host() -> tuple[torch.Tensor, torch.Tensor]:
    """Seed and offset of the memory-efficient kernel."""
    made = (torch.empty((), dtype=torch.int64, device=META) for _ in range(2))
    return virtual(next(made), CPU), virtual(next(made), CPU)


def _packed_efficient_attention(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Make the results of attention on sequences in a row."""
    out, saved, _seed, _offset, *longest = aten._efficient_attention_forward.default(*args, **kwargs)
    return (out, saved, *_on_host(), *longest)


def _packed_efficient_attention_backward(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Make the gradients; that of the bias only if there is a bias."""
    found = aten._efficient_attention_backward.default(*args, **kwargs)
    return found if args[4] is not None else (*found[:3], found[0].new_empty((0,)))


def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Make the results; the first has the query's strides."""
    batch, heads, rows = query.shape[:3]
    out = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    saved = query.new_empty((batch, heads, rows), dtype=torch.float32)
    state = query.new_empty((2,), dtype=torch.uint64)
    offset, none = query.new_empty((), dtype=torch.uint64), query.new_empty((0,), dtype=query.dtype)
    return out, saved, None, None, rows, key.shape[2], state, offset, none


def of(settings: ModelledDevice) -> dict[Any, Callable[..., Any]]:
    """Return all kernels of a device, with those that need a model of cuDNN."""
    if settings.ram:
        return {**LOSSES, **sparse.KERNELS, **ram_ops.KERNELS}
    cudnn = settings.cudnn
    return {
        **KERNELS,
        **recurrent.KERNELS,
        **sparse.KERNELS,
        **ctc.KERNELS,
        **grouped.KERNELS,
        **synced_norms.KERNELS,
        aten.cudnn_batch_norm.default: _cudnn_batch_norm(cudnn.batch_norm_reserve),
        aten._cudnn_rnn.default: recurrent.kernel(cudnn.rnn_reserve),
        aten._cudnn_rnn_backward.default: recurrent.backward_kernel,
    }


def _convolution(*args: Any) -> torch.Tensor:
    """Make the result, in the layout that cuDNN chooses."""
    shape = aten.convolution.default(*args).shape
    made = torch.empty(shape, dtype=args[0].dtype, device="meta")
    return torch.empty_like(made, memory_format=convolution_layout(args[0], args[1]))


def _convolution_backward(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *others: Any) -> Any:
    mask = others[-1]
    layout = convolution_layout(input, weight)
    return (
        torch.empty_like(input, memory_format=layout) if mask[0] else None,
        torch.empty_like(weight, memory_format=layout) if mask[1] else None,
        grad.new_empty(grad.shape[1]) if mask[2] else None,
    )


def _pointwise_loss(input: torch.Tensor, target: torch.Tensor, reduction: int = 1, *_others: Any) -> torch.Tensor:
    """Make the loss; a reduced one stays in a storage of the size before (BinaryOps.cpp, Loss.cpp)."""
    made = torch.empty_like(torch.add(input, target))
    return made.as_strided((), ()) if reduction else made


LOSSES: dict[Any, Callable[..., Any]] = {
    aten.mse_loss.default: _pointwise_loss,
    aten.smooth_l1_loss.default: _pointwise_loss,
    aten.huber_loss.default: _pointwise_loss,
}

KERNELS: dict[Any, Callable[..., Any]] = {
    **LOSSES,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
    aten._fused_rms_norm.default: _fused_rms_norm,
    aten._fused_rms_norm_backward.default: _fused_rms_norm_backward,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.native_layer_norm_backward.default: _native_layer_norm_backward,
    aten.native_dropout.default: _native_dropout,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten._scaled_dot_product_flash_attention.default: _flash_attention,
    aten._efficient_attention_forward.default: _packed_efficient_attention,
    aten._efficient_attention_backward.default: _packed_efficient_attention_backward,
    aten.native_dropout_backward.default: _native_dropout_backward,
}
