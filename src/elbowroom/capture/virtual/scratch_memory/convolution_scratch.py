"""Convolution scratch: copies in cuDNN's layout, its workspaces, and the trials of `cudnn.benchmark`.

It is part of the table in scratch.py. Trials are those of Conv_v8.cpp. The first call of a convolution takes the
largest workspace that its algorithms want, as far as there is room. It is freed after all were timed. Then the
allocator's cache is emptied, and the chosen algorithm runs, as at all later calls. Calls are the same if these agree:
operation, shapes, dtype, layout, settings, alignment of tensors, and thread (forward's or backward's).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.ops.layouts import bytes_of, convolution_layout, in_layout, layout_of
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import ConvolutionCall
from elbowroom.capture.virtual.scratch_memory.reductions import partial_bytes
from elbowroom.torch_compat.core import in_backward

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

_MOST_ALIGNED = 32
"""Largest alignment in bytes that is distinguished (Conv_v8.cpp: getAlignment)."""


def convolution(call: ScratchCall) -> None:
    """Allocate copies in cuDNN's one layout, and its workspace (Convolution.cpp, ConvShared.cpp; rig)."""
    input, weight = call.args[:2]
    layout = convolution_layout(input, weight)
    if not torch.backends.cudnn.enabled:
        _native(call)
        return
    copy = in_layout(call, input, layout)
    call.out(0)
    if _is_depthwise(input, weight, call.args[8]):
        call.drop(copy)
        return
    weights = in_layout(call, weight, layout)
    shapes = tuple(input.shape), tuple(weight.shape), tuple(call.results[0].shape)
    _workspace(call, shapes, "forward", (input, weight), call.args[3:9])
    call.drop(weights, copy)


def _native(call: ScratchCall) -> None:
    """Allocate for torch's own kernel: windows of one image as columns, and a product (ConvolutionMM2d.cu; rig).

    One and two dimensions were compared. With dilation or groups, or transposed, there are columns as well, and copies
    that are left out here.
    """
    input, weight = call.args[:2]
    stride, padding = call.args[3:5]
    call.out(0)
    if _is_depthwise(input, weight, call.args[8]):
        return
    plain = all(each == 1 for each in (*weight.shape[2:], *stride)) and not any(padding)
    columns = -1 if plain else call.temp(_column_bytes(weight, call.results[0]))
    call.blas()
    call.drop(columns)


def _native_backward(call: ScratchCall) -> None:
    """Allocate columns for each gradient; the bias's comes before the weight's (ConvolutionMM2d.cu; rig)."""
    grad, input, weight = call.args[:3]
    mask = call.args[10]
    if _is_depthwise(input, weight, call.args[9]):
        _depthwise_backward(call)
        return
    copy = in_layout(call, grad, torch.contiguous_format)
    others = reversed(range(int(mask[0]), len(call.results)))
    if mask[0]:
        call.out(0)
    else:
        call.out(*others)
    columns = call.temp(_column_bytes(weight, grad))
    call.blas()
    call.out(*others)
    call.drop(columns, copy)


def _column_bytes(weight: torch.Tensor, output: torch.Tensor) -> int:
    """Return the bytes of one image's columns: each window of its input, for each position of its output."""
    return bytes_of(weight) // max(1, weight.shape[0]) * prod(output.shape[2:])


def _is_depthwise(input: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Whether torch's own kernel runs: in float, and not channels last (Convolution.cpp: use_cudnn_depthwise; rig)."""
    if groups == 1 or input.dim() != 4 or groups != input.shape[1] or weight.shape[1] != 1:
        return False
    return input.dtype is torch.float32 and convolution_layout(input, weight) is torch.contiguous_format


def _depthwise_backward(call: ScratchCall) -> None:
    """The weight's gradient comes first (DepthwiseConv2d.cu; rig)."""
    grad, input = call.args[:2]
    mask = call.args[10]
    copies = [in_layout(call, each, torch.contiguous_format) for each in (grad, input)]
    for index in reversed(range(mask[0] + mask[1])):
        call.out(index)
    call.drop(*reversed(copies))


def convolution_backward(call: ScratchCall) -> None:
    """The two gradients by cuDNN; that of the bias is a sum over all but the channels (Convolution.cpp; rig)."""
    grad, input, weight = call.args[:3]
    mask = call.args[10]
    if not torch.backends.cudnn.enabled:
        _native_backward(call)
        return
    if _is_depthwise(input, weight, call.args[9]):
        _depthwise_backward(call)
    else:
        _cudnn_backward(call)
    if mask[2]:
        call.out(len(call.results) - 1)
        call.reduce(grad, [dim for dim in range(grad.dim()) if dim != 1], partial_bytes(grad.dtype))


def _cudnn_backward(call: ScratchCall) -> None:
    grad, input, weight = call.args[:3]
    mask, settings = call.args[10], call.args[4:10]
    layout = convolution_layout(input, weight)
    shapes = (tuple(input.shape), tuple(weight.shape), tuple(grad.shape))
    inputs = in_layout(call, input, layout) if mask[1] else -1
    single = call.args[7] or layout_of(grad) is not layout  # else each gradient makes a copy of its own
    once = in_layout(call, grad, layout) if single else -1
    if mask[0]:
        call.out(0)
        copies = [in_layout(call, each, layout) for each in ((weight,) if single else (grad, weight))]
        _workspace(call, shapes, "input", (grad, weight), settings)
        call.drop(*reversed(copies))
    if mask[1]:
        copy = -1 if single else in_layout(call, grad, layout)
        call.out(int(mask[0]))
        _workspace(call, shapes, "weight", (grad, input), settings)
        call.drop(copy)
    call.drop(once, inputs)


def _workspace(call: ScratchCall, shapes: Shapes, which: str, read: tuple[torch.Tensor, ...], settings: Any) -> None:
    """Allocate the workspace of one pass by the model of cuDNN; with `cudnn.benchmark`, first its trials."""
    cudnn = torch.backends.cudnn
    deterministic = bool(cudnn.deterministic or torch.are_deterministic_algorithms_enabled())
    described = _described(call, shapes, which, read[0], settings, deterministic)
    wanted = call.cudnn.workspace(described)
    aligned = tuple(map(_alignment, read))
    if cudnn.benchmark and call.is_new(f"{described} {settings} {aligned} {cudnn.allow_tf32} {in_backward()}"):
        call.tried(wanted.most_bytes, wanted.tried_bytes)
    call.workspace(wanted)


def _described(
    call: ScratchCall, shapes: Shapes, which: str, first: torch.Tensor, settings: Any, deterministic: bool
) -> ConvolutionCall:
    """Describe a pass. A transposed convolution is a plain one's gradient of the input: input and output swap roles."""
    stride, _, dilation, transposed, _, groups = settings
    input, weight, output = shapes
    if transposed:
        input, output = output, input
        which = {"forward": "input", "input": "forward"}.get(which, which)
    newer = call.facts.compute_capability >= 80
    return ConvolutionCall(
        input_shape=input,
        weight_shape=weight,
        output_shape=output,
        item_bytes=first.element_size(),
        pass_=which,
        channels_last=_channels_last(call),
        tensor_cores=first.dtype in (torch.float16, torch.bfloat16)
        or (first.dtype is torch.float32 and newer and torch.backends.cudnn.allow_tf32),
        stride=tuple(stride),
        dilation=tuple(dilation),
        groups=groups,
        compute_capability=call.facts.compute_capability,
        deterministic=deterministic,
        benchmark=torch.backends.cudnn.benchmark,
    )


def _channels_last(call: ScratchCall) -> bool:
    first = int(call.func is torch.ops.aten.convolution_backward.default)
    return convolution_layout(*call.args[first : first + 2]) is not torch.contiguous_format


def _alignment(tensor: torch.Tensor) -> int:
    """Return the alignment of a tensor's first byte in its block; blocks are aligned."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return min(_MOST_ALIGNED, begin & -begin) if begin else _MOST_ALIGNED


def rules() -> dict[Any, Any]:
    """The ops of this file."""
    aten: Any = torch.ops.aten
    return {aten.convolution.default: convolution, aten.convolution_backward.default: convolution_backward}
