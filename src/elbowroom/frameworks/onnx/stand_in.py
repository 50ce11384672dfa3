"""Stand-in: a layer for an op that is not converted; it holds its inputs and results, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shapes: Sequence[Sequence[int]], dtype: torch.dtype, *inputs: Tensor) -> tuple[Tensor, ...]:
        made = tuple(torch.empty(tuple(shape), dtype=dtype, device=inputs[0].device) for shape in shapes)
        ctx.save_for_backward(*inputs)
        return made

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> tuple[Tensor | None, ...]:
        floats = (torch.zeros_like(each) if each.is_floating_point() else None for each in ctx.saved_tensors)
        return (None, None, *floats)


class StandIn(nn.Module):
    """Makes results of given shapes, with gradients of zeros; what the op itself takes is not known.

    Args:
        shapes: shape of each result.
        dtype: their dtype.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> None:
        super().__init__()
        self._shapes = tuple(shapes)
        self._dtype = dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Make the results."""
        return _Held.apply(self._shapes, self._dtype, *inputs)  # pyright: ignore[reportReturnType]
