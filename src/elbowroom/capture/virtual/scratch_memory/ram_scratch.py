"""Scratch of the CPU's kernels: what they allocate in RAM in addition to their results, through torch.

How much oneDNN takes depends on the processor. So these are bounds, as workspaces are: a plan leaves room for the most,
and no budget is refused because of them. Memory that libraries take past torch is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.ops.ram_ops import alike, workspace_bytes
from elbowroom.torch_compat.core import conv_backend

aten: Any = torch.ops.aten
CHANNELS = 16
"""Channels of a block in oneDNN's layouts; fewer are padded."""
SPARE_PART = 16
"""So large a part of the copies is added: each thread has some scratch of its own."""
COPIES = 2
"""Most copies that an op makes of its largest tensor where it is not in order."""


def allocate(ledger: Ledger, func: Any, args: Any, results: list[torch.Tensor]) -> None:
    """Note everything that one op allocates and frees."""
    rule = RULES.get(func)
    most_bytes = 0 if rule is None else rule(args, results)
    if most_bytes:
        number = ledger.scratch(most_bytes, "workspace")
        ledger.bounds[number] = (0, most_bytes)
        ledger.remark("workspace_model", str(func))
    for result in results:
        ledger.alloc(result)
    if most_bytes:
        ledger.release(number)


def _convolution(args: Any, results: list[torch.Tensor]) -> int:
    """Columns of the input, or copies of input and result in blocks of channels; a transposed one copies its result."""
    input, weight, bias = args[:3]
    x, y = _in_blocks(input), _in_blocks(results[0])
    copies = max(x + y, COPIES * y) if args[6] else x + y
    return _of_convolution(input, weight, results[0], _backend(input, weight, bias, args[3:9]), copies)


def _convolution_backward(args: Any, _results: list[torch.Tensor]) -> int:
    grad, input, weight = args[:3]
    x, y = _in_blocks(input), _in_blocks(grad)
    return _of_convolution(
        input, weight, grad, _backend(input, weight, None, args[4:10]), max(x + COPIES * y, COPIES * x)
    )


def _of_convolution(input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, backend: str, copies: int) -> int:
    """Return the bytes of columns, or of copies with this number of elements, and of the weight's copies."""
    size = input.element_size()
    if "Slow" in backend:
        return prod(weight.shape[1:]) * input.shape[0] * prod(output.shape[2:]) * size
    return (copies + copies // SPARE_PART + COPIES * _in_blocks(weight)) * size


def _in_blocks(tensor: torch.Tensor) -> int:
    """Return the elements of a tensor [N, C, ...] whose channels are padded to whole blocks."""
    batch, channels, *rest = tensor.shape
    return batch * -(-channels // CHANNELS) * CHANNELS * prod(rest)


def _backend(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: Any) -> str:
    """Name what torch takes for a convolution of these settings: it looks at shapes and types alone."""
    return conv_backend(alike(input), alike(weight), None if bias is None else alike(bias), *settings)


def _copy(args: Any, _results: list[torch.Tensor]) -> int:
    return max(each.numel() * each.element_size() for each in args if isinstance(each, torch.Tensor))


def _copies(args: Any, results: list[torch.Tensor]) -> int:
    return COPIES * _copy(args, results)


def _gates(args: Any, _results: list[torch.Tensor]) -> int:
    """Gates of all steps, and gradients of weights in oneDNN's layout."""
    steps, batch, width = args[0].shape
    hidden = args[2].shape[1]
    weights = sum(each.numel() * each.element_size() for each in args[1:5])
    return workspace_bytes(steps, batch, width, hidden) // 2 + COPIES * weights


RULES: dict[Any, Callable[[Any, list[torch.Tensor]], int]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mkldnn_rnn_layer.default: _gates,
    aten.mkldnn_rnn_layer_backward.default: _gates,
    aten.native_batch_norm_backward.default: _copy,
    aten.native_layer_norm.default: _copy,
    aten.native_layer_norm_backward.default: _copies,
    aten.native_group_norm_backward.default: _copy,
    aten.roll.default: _copies,
    aten.binary_cross_entropy_with_logits.default: _copies,
}
"""Most bytes of scratch, by op. torch/aten/src/ATen/native: ConvolutionMM2d.cpp, ConvolutionMM3d.cpp, mkldnn/Conv.cpp,
mkldnn/RNN.cpp, Normalization.cpp, layer_norm.cpp, group_norm.cpp, TensorTransformations.cpp, Loss.cpp."""
