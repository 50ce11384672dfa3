"""Linear: a linear layer as torch computes it for tensors of no subclass, on every device (Linear.cpp)."""

from __future__ import annotations

from typing import Any

import torch

aten: Any = torch.ops.aten


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias in place, except for tensors of a subclass."""
    if bias is None:
        return aten.matmul(input, weight.t())
    if input.dim() == 2:
        return aten.addmm(bias, input, weight.t())
    if input.dim() > 2 and input.is_contiguous():
        flat = aten.addmm(bias, input.reshape(-1, input.shape[-1]), weight.t())
        return flat.view(*input.shape[:-1], weight.shape[0])
    return aten.add_(aten.matmul(input, weight.t()), bias)
