"""Memory formats: run a convolution with its tensors in another memory order, and convert its results back.

A library takes another algorithm if the channels of a pixel are adjacent in memory. Inside the operator, input, weight
and gradient are copied into that order, and the results back. So autograd saves the same tensors as before, and the
rest of the training sees no difference. The copies count as time and scratch memory of the operator.
Reference: vDNN's algorithms by layer (Rhu et al., MICRO 2016); "Channels Last Memory Format" (PyTorch tutorials).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor

from elbowroom.torch_compat.core import DispatchMode

Format = Literal["contiguous", "channels_last"]

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of dimensions -> channels-last order; tensors of another number have no such order."""

_CONVERTED = {torch.ops.aten.convolution.default: 2, torch.ops.aten.convolution_backward.default: 3}
"""Operator -> number of its first arguments to convert: input and weight, and the gradient before them."""


def other_format(*laid_out: tuple[tuple[int, ...], tuple[int, ...]]) -> Format | None:
    """Return the order that a convolution does not run in by itself; None if there is only one.

    torch runs it in channels_last if one of its tensors has that order.

    Args:
        laid_out: (shape, stride) of the input and of the weight, in elements.
    """
    found = [torch.empty_strided(*each, device="meta") for each in laid_out]
    last = CHANNELS_LAST.get(found[0].dim())
    if last is None:
        return None
    in_last = any(each.is_contiguous(memory_format=last) and not each.is_contiguous() for each in found)
    return "contiguous" if in_last else "channels_last"


@final
class InFormat(DispatchMode):
    """Context in which convolutions of this thread run in a format, and return their results in the other one.

    It runs below autograd and autocast, and sees operators alone.
    """

    def __init__(self, wanted: Format) -> None:
        super().__init__()
        self._wanted: Format = wanted

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        count = _CONVERTED.get(func, 0)
        last = CHANNELS_LAST.get(args[0].dim()) if count else None
        if last is None:
            return func(*args, **(kwargs or {}))
        inside, outside = (
            (last, torch.contiguous_format) if self._wanted == "channels_last" else (torch.contiguous_format, last)
        )
        found = func(*(each.contiguous(memory_format=inside) for each in args[:count]), *args[count:])
        if isinstance(found, Tensor):
            return found.contiguous(memory_format=outside)
        return tuple(_laid_out(each, outside) for each in found)


def _laid_out(found: Tensor | None, order: torch.memory_format) -> Tensor | None:
    """Return a gradient in an order. That of a bias has no such order; one that nobody needs is None."""
    return found.contiguous(memory_format=order) if found is not None and found.dim() in CHANNELS_LAST else found
