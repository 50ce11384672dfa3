"""Scratch of norms and softmax; part of the table in scratch.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.ops.layouts import bytes_of, in_layout
from elbowroom.capture.virtual.scratch_memory.reductions import partial_bytes

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall


def layer_norm(call: ScratchCall) -> None:
    """A dense input, then the results (layer_norm_kernel.cu; rig)."""
    input = call.args[0]
    copy = in_layout(call, input, torch.contiguous_format)
    call.out(0, 1, 2)
    call.drop(copy)


def layer_norm_backward(call: ScratchCall) -> None:
    """Dense arguments; partial sums of long and narrow inputs (layer_norm_kernel.cu; rig)."""
    _norm_backward(call, call.args[7])


def rms_norm(call: ScratchCall) -> None:
    """A dense input, then the results (layer_norm_kernel.cu; rig)."""
    copy = in_layout(call, call.args[0], torch.contiguous_format)
    call.out(0, 1)
    call.drop(copy)


def rms_norm_backward(call: ScratchCall) -> None:
    """As that of the layer norm, without a bias (layer_norm_kernel.cu; rig)."""
    _norm_backward(call, call.args[5])


def _norm_backward(call: ScratchCall, mask: list[bool]) -> None:
    grad, input, shape = call.args[:3]
    first = in_layout(call, input, torch.contiguous_format)
    width = 1
    for size in shape:
        width *= size
    rows = input.numel() // max(width, 1)
    split = rows > 65_536 and width // 32 < call.facts.multiprocessors // 2 and any(mask[1:])
    call.out(*range(int(mask[0]) if split else len(call.results)))
    if not split:
        call.drop(in_layout(call, grad, torch.contiguous_format), first)
        return
    item = input.element_size()
    parts = -(-rows // 32)
    places = [call.temp(width * item) for wanted in mask[1:] if wanted]
    copy = in_layout(call, grad, torch.contiguous_format)
    whole = [call.temp(parts * width * item) for _ in places]
    for index, place in enumerate(places, start=int(mask[0])):
        call.out(index)  # the sum of the parts takes the place of the gradient made for it
        call.reduce_rows(parts, width, partial_bytes(input.dtype))
        call.drop(place)
    call.drop(*reversed(whole), copy, first)


def batch_norm(call: ScratchCall) -> None:
    """torch's own; in channels_last the statistics of many rows are gathered from parts (Normalization.cuh; rig).

    Those of volumes in channels_last are reduced in a way that is not modelled.
    """
    call.out(0, 1, 2)
    if call.args[5] and call.args[0].dim() < 5 and _channels_last(call.args[0]):
        _parts_of_statistics(call, 4)


def batch_norm_backward(call: ScratchCall) -> None:
    """torch's own in channels_last: two sums, the gradients of weight, bias and input (Normalization.cuh; rig)."""
    input = call.args[1]
    if _channels_last(input) and len(call.results) == 3:
        sums = [call.temp(input.shape[1] * partial_bytes(input.dtype)) for _ in range(2)]
        call.out(1, 2)
        call.drop(*reversed(_parts_of_statistics(call, 2)))
        call.out(0)
        call.drop(*reversed(sums))


def _channels_last(input: torch.Tensor) -> bool:
    """Return whether kernels for channels_last take it, as they do matrices (batch_norm_use_channels_last_kernels)."""
    if input.is_contiguous():
        return input.stride(1) == 1
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()])


def _parts_of_statistics(call: ScratchCall, values: int) -> list[int]:
    """Return bytes of the blocks' results, `values` for each channel, and of a counter (flexible_launch_configs)."""
    input = call.args[0]
    channels = input.shape[1]
    rows = input.numel() // max(channels, 1)
    width = min(_power_of_two(channels), 32)
    height = min(_power_of_two(-(-rows // 16)), 512 // width)
    if width * height != 512:
        width = min(_power_of_two(channels), 512 // height)
    blocks = min(-(-rows // (height * 16)), 128)
    if blocks < 8:
        return []
    return [call.temp(values * channels * blocks * partial_bytes(input.dtype)), call.temp(-(-channels // width) * 4)]


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << max(number.bit_length() - 1, 0)


def softmax_backward(call: ScratchCall) -> None:
    """The product of gradient and result (SoftMax.cu; rig)."""
    call.out(0)
    call.drop(call.temp(bytes_of(call.args[0])))


def group_norm(call: ScratchCall) -> None:
    """Scale and shift of each channel of each image (group_norm_kernel.cu; rig)."""
    input, weight, bias = call.args[:3]
    images, channels, pixels = call.args[3:6]
    call.out(0, 1, 2)
    if pixels > 1 and (weight is not None or bias is not None):
        size = images * channels * partial_bytes(input.dtype)
        call.temp(size)
        call.temp(size)


def group_norm_backward(call: ScratchCall) -> None:
    """Sums of each channel of each image, and three factors (group_norm_kernel.cu; rig)."""
    grad, _input, _mean, _rstd, weight = call.args[:5]
    images, channels, pixels, groups = call.args[5:9]
    call.out(*range(len(call.results)))
    if pixels == 1:
        return
    width = partial_bytes(grad.dtype)
    call.temp(images * channels * width)
    call.temp(images * channels * width)
    second, third = call.temp(images * groups * width), call.temp(images * groups * width)
    first = call.temp(images * channels * width) if weight is not None else -1
    call.drop(third, second, first)


def rules() -> dict[Any, Any]:
    """Return the rules of this file."""
    aten: Any = torch.ops.aten
    return {
        aten.native_group_norm.default: group_norm,
        aten.native_group_norm_backward.default: group_norm_backward,
        aten.native_layer_norm.default: layer_norm,
        aten._fused_rms_norm.default: rms_norm,
        aten._fused_rms_norm_backward.default: rms_norm_backward,
        aten.native_layer_norm_backward.default: layer_norm_backward,
        aten.native_batch_norm.default: batch_norm,
        aten.native_batch_norm_backward.default: batch_norm_backward,
        aten._softmax_backward_data.default: softmax_backward,
    }
