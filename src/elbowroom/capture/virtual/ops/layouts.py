"""Layouts of tensors as torch sees them, and copies in another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall


def layout_of(tensor: torch.Tensor) -> torch.memory_format:
    """Return the `suggest_memory_format` of a tensor: strides in the order of channels last, dense or not."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is None:
        return torch.contiguous_format
    shape, strides = tensor.shape, tensor.stride()
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if not shape[dim] or strides[dim] < least or not strides[1] or (dim == 0 and least == strides[1]):
            return torch.contiguous_format
        least = strides[dim] * max(shape[dim], 1)
    return layout


def convolution_layout(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return channels last if either tensor is (ConvUtils.h: cudnn_conv_suggest_memory_format)."""
    of_input = layout_of(input)
    return of_input if of_input is not torch.contiguous_format else layout_of(weight)


def in_layout(call: ScratchCall, tensor: torch.Tensor, layout: torch.memory_format) -> int:
    """Allocate a copy of a tensor in a layout, if it is not in it."""
    return -1 if tensor.is_contiguous(memory_format=layout) else call.temp(bytes_of(tensor))


def bytes_of(tensor: torch.Tensor) -> int:
    """Count the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
