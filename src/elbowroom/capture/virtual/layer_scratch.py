"""Scratch of convolutions and norms; part of the table in scratch.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.reductions import partial_bytes

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch import Call


def layout_of(tensor: torch.Tensor) -> torch.memory_format:
    """What `suggest_memory_format` says of a tensor: strides in the order of channels last, dense or not."""
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
    """Channels last if either is (ConvUtils.h: cudnn_conv_suggest_memory_format)."""
    of_input = layout_of(input)
    return of_input if of_input is not torch.contiguous_format else layout_of(weight)


def _in_layout(call: Call, tensor: torch.Tensor, layout: torch.memory_format) -> int:
    """A copy of a tensor in another layout, if it is not in it."""
    return -1 if tensor.is_contiguous(memory_format=layout) else call.temp(_bytes(tensor))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def convolution(call: Call) -> None:
    """cuDNN wants all in one layout, and asks for a workspace (Convolution.cpp, ConvShared.cpp; rig)."""
    input, weight = call.args[:2]
    layout = convolution_layout(input, weight)
    last = layout is not torch.contiguous_format
    copy = _in_layout(call, input, layout)
    call.out(0)
    weights = _in_layout(call, weight, layout)
    call.convolution_workspace(tuple(input.shape), tuple(weight.shape), tuple(call.results[0].shape), "forward", last)
    call.drop(weights, copy)


def _is_depthwise(call: Call, input: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Whether torch's own kernel runs: in float, and not channels last (Convolution.cpp: use_cudnn_depthwise; rig)."""
    if groups == 1 or input.dim() != 4 or groups != input.shape[1] or weight.shape[1] != 1:
        return False
    return input.dtype is torch.float32 and convolution_layout(input, weight) is torch.contiguous_format


def _depthwise_backward(call: Call) -> None:
    """The weight's gradient comes first (DepthwiseConv2d.cu; rig)."""
    grad, input = call.args[:2]
    mask = call.args[10]
    copies = [_in_layout(call, each, torch.contiguous_format) for each in (grad, input)]
    for index in reversed(range(mask[0] + mask[1])):
        call.out(index)
    call.drop(*reversed(copies))


def convolution_backward(call: Call) -> None:
    """The two gradients by cuDNN; that of the bias is a sum over all but the channels (Convolution.cpp; rig)."""
    grad, input, weight = call.args[:3]
    mask = call.args[10]
    if _is_depthwise(call, input, weight, call.args[9]):
        _depthwise_backward(call)
    else:
        _cudnn_backward(call)
    if mask[2]:
        call.out(len(call.results) - 1)
        call.reduce(grad, [dim for dim in range(grad.dim()) if dim != 1], partial_bytes(grad.dtype))


def _cudnn_backward(call: Call) -> None:
    grad, input, weight = call.args[:3]
    mask = call.args[10]
    layout = convolution_layout(input, weight)
    last = layout is not torch.contiguous_format
    shapes = (tuple(input.shape), tuple(weight.shape), tuple(grad.shape))
    inputs = _in_layout(call, input, layout) if mask[1] else -1
    single = call.args[7] or layout_of(grad) is not layout  # else each gradient makes a copy of its own
    once = _in_layout(call, grad, layout) if single else -1
    if mask[0]:
        call.out(0)
        copies = [_in_layout(call, each, layout) for each in ((weight,) if single else (grad, weight))]
        call.convolution_workspace(*shapes, "input", last)
        call.drop(*reversed(copies))
    if mask[1]:
        copy = -1 if single else _in_layout(call, grad, layout)
        call.out(int(mask[0]))
        call.convolution_workspace(*shapes, "weight", last)
        call.drop(copy)
    call.drop(once, inputs)


def layer_norm(call: Call) -> None:
    """A dense input, then the results (layer_norm_kernel.cu; rig)."""
    input = call.args[0]
    copy = _in_layout(call, input, torch.contiguous_format)
    call.out(0, 1, 2)
    call.drop(copy)


def layer_norm_backward(call: Call) -> None:
    """Dense arguments; partial sums of long and narrow inputs (layer_norm_kernel.cu; rig)."""
    _norm_backward(call, call.args[7])


def rms_norm(call: Call) -> None:
    """A dense input, then the results (layer_norm_kernel.cu; rig)."""
    copy = _in_layout(call, call.args[0], torch.contiguous_format)
    call.out(0, 1)
    call.drop(copy)


def rms_norm_backward(call: Call) -> None:
    """As that of the layer norm, without a bias (layer_norm_kernel.cu; rig)."""
    _norm_backward(call, call.args[5])


def _norm_backward(call: Call, mask: list[bool]) -> None:
    grad, input, shape = call.args[:3]
    first = _in_layout(call, input, torch.contiguous_format)
    width = 1
    for size in shape:
        width *= size
    rows = input.numel() // max(width, 1)
    split = rows > 65_536 and width // 32 < call.facts.multiprocessors // 2 and any(mask[1:])
    call.out(*range(int(mask[0]) if split else len(call.results)))
    if not split:
        call.drop(_in_layout(call, grad, torch.contiguous_format), first)
        return
    item = input.element_size()
    parts = -(-rows // 32)
    places = [call.temp(width * item) for wanted in mask[1:] if wanted]
    copy = _in_layout(call, grad, torch.contiguous_format)
    whole = [call.temp(parts * width * item) for _ in places]
    for index, place in enumerate(places, start=int(mask[0])):
        call.out(index)  # the sum of the parts takes the place of what was made for it
        call.reduce_rows(parts, width, partial_bytes(input.dtype))
        call.drop(place)
    call.drop(*reversed(whole), copy, first)


def batch_norm_backward(call: Call) -> None:
    """torch's own on a matrix: two sums, weight's and bias's gradients, then the input's (Normalization.cu; rig)."""
    input = call.args[1]
    if input.dim() == 2 and len(call.results) == 3:
        sums = [call.temp(input.shape[1] * partial_bytes(input.dtype)) for _ in range(2)]
        call.out(1, 2, 0)
        call.drop(*reversed(sums))


def softmax_backward(call: Call) -> None:
    """The product of gradient and result (SoftMax.cu; rig)."""
    call.out(0)
    call.drop(call.temp(_bytes(call.args[0])))


def group_norm(call: Call) -> None:
    """Scale and shift of each channel of each image (group_norm_kernel.cu; rig)."""
    input, weight, bias = call.args[:3]
    images, channels, pixels = call.args[3:6]
    call.out(0, 1, 2)
    if pixels > 1 and (weight is not None or bias is not None):
        size = images * channels * partial_bytes(input.dtype)
        call.temp(size)
        call.temp(size)


def group_norm_backward(call: Call) -> None:
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
    """The ops of this file."""
    aten: Any = torch.ops.aten
    return {
        aten.convolution.default: convolution,
        aten.convolution_backward.default: convolution_backward,
        aten.native_group_norm.default: group_norm,
        aten.native_group_norm_backward.default: group_norm_backward,
        aten.native_layer_norm.default: layer_norm,
        aten._fused_rms_norm.default: rms_norm,
        aten._fused_rms_norm_backward.default: rms_norm_backward,
        aten.native_layer_norm_backward.default: layer_norm_backward,
        aten.native_batch_norm_backward.default: batch_norm_backward,
        aten._softmax_backward_data.default: softmax_backward,
    }
