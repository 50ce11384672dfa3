"""Synced norms: the ops of `torch.nn.SyncBatchNorm`, which torch has for CUDA alone: their results have no meta kernel.

Shapes and types are those of Normalization.cuh. Its kernels for channels last have scratch memory that is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten: Any = torch.ops.aten


def _of_channels(input: torch.Tensor) -> torch.Tensor:
    """Make a number per channel; of 16-bit inputs in float32."""
    dtype = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    return input.new_empty((input.shape[1],), dtype=dtype)


def _statistics(input: torch.Tensor, *_others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _of_channels(input), _of_channels(input)


def _like_input(input: torch.Tensor, *_others: Any) -> torch.Tensor:
    return torch.empty_like(input)


def _reduced(grad: torch.Tensor, input: torch.Tensor, mean: Any, invstd: Any, weight: Any, *asked: bool) -> Any:
    of_input, of_weight, of_bias = asked
    sums = [torch.empty_like(mean) if of_input else None for _ in range(2)]
    like = mean if weight is None else weight
    return (*sums, *(torch.empty_like(like) if each else None for each in (of_weight, of_bias)))


def _gradient(grad: torch.Tensor, input: torch.Tensor, *_others: Any) -> torch.Tensor:
    return torch.empty_like(input)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.batch_norm_stats.default: _statistics,
    aten.batch_norm_gather_stats_with_counts.default: _statistics,
    aten.batch_norm_elemt.default: _like_input,
    aten.batch_norm_backward_reduce.default: _reduced,
    aten.batch_norm_backward_elemt.default: _gradient,
}
