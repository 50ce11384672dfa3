"""ONNX layers: ops with weights, and pooling, as PyTorch's own modules and functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.frameworks.onnx.node_call import Function, NodeCall, derived, is_weight, stored
from elbowroom.frameworks.onnx.onnx_ops import converts

CONVOLUTIONS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[Any, ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Pads = tuple[list[int], list[int]]
"""What is added before and behind each dimension of space."""


def _pads(call: NodeCall, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pads:
    """Return the padding of a convolution or of pooling; SAME follows from the sizes."""
    dims, automatic = len(kernel), call.of("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID", ""):
        pads = call.of("pads", [0] * 2 * dims) if automatic != "VALID" else [0] * 2 * dims
        return list(pads[:dims]), list(pads[dims:])
    before, behind = [], []
    for size, k, s, d in zip(call.tensor(0).shape[2:], kernel, stride, dilation, strict=True):
        total = max((math.ceil(size / s) - 1) * s + d * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if automatic == "SAME_UPPER" else large)
        behind.append(large if automatic == "SAME_UPPER" else small)
    return before, behind


def _padded(pads: Pads, value: float = 0.0) -> Callable[[Tensor], Tensor] | None:
    """Return a function that pads where both sides differ, which no layer of PyTorch does by itself; else None."""
    if pads[0] == pads[1]:
        return None
    words = [size for pair in zip(reversed(pads[0]), reversed(pads[1]), strict=True) for size in pair]
    return lambda x: functional.pad(x, words, value=value)


class PaddedLayer(nn.Module):
    """A layer behind padding that differs from side to side, as TensorFlow's SAME makes it."""

    def __init__(self, pad: Callable[[Tensor], Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self._pad = pad

    def forward(self, x: Tensor) -> Tensor:
        """Pad, then run the layer."""
        return self.layer(self._pad(x))


def _with_weights(call: NodeCall, module: nn.Module, weight: int, bias: int | None) -> nn.Module:
    """Give a module the weights of a node's inputs."""
    module.weight = call.parameter(weight)
    if bias is not None and call.has(bias):
        module.bias = call.parameter(bias)
    return module


@converts("Conv")
def _conv(call: NodeCall) -> Function:
    dims = call.tensor(1).dim() - 2
    stride, dilation = call.of("strides", [1] * dims), call.of("dilations", [1] * dims)
    pads, groups = _pads(call, call.tensor(1).shape[2:], stride, dilation), call.of("group", 1)
    pad = _padded(pads)
    padding = [0] * dims if pad else pads[0]
    if not call.is_parameter(1) or (call.has(2) and not call.is_parameter(2)):
        return _free_conv(
            call,
            (functional.conv1d, functional.conv2d, functional.conv3d)[dims - 1],
            pad,
            (stride, padding, dilation, groups),
        )
    out, per_group, *kernel = call.tensor(1).shape
    made = CONVOLUTIONS[dims - 1](
        per_group * groups, out, kernel, stride, padding, dilation, groups, bias=call.has(2), device="meta"
    )
    call.take(0)
    module = _with_weights(call, made, 1, 2)
    return PaddedLayer(pad, module) if pad else module


def _free_conv(
    call: NodeCall, function: Function, pad: Callable[[Tensor], Tensor] | None, words: Sequence[Any]
) -> Function:
    """Return a convolution whose kernel the network computes."""
    call.take(*(place for place in (0, 1, 2) if call.has(place)))
    return lambda x, *weights: function(pad(x) if pad else x, *weights, *([None] * (2 - len(weights))), *words)


@converts("ConvTranspose")
def _conv_back(call: NodeCall) -> Function:
    call.take(0)
    weight = call.tensor(1)
    dims, groups = weight.dim() - 2, call.of("group", 1)
    stride, dilation = call.of("strides", [1] * dims), call.of("dilations", [1] * dims)
    pads, extra = call.of("pads", [0] * 2 * dims), list(call.of("output_padding", [0] * dims))
    if call.of("auto_pad", "NOTSET").startswith("SAME") or "output_shape" in call.attributes:
        pads = _pads_back(call, weight.shape[2:], stride, dilation)
    cut = [behind - before for before, behind in zip(pads[:dims], pads[dims:], strict=True)]
    made = TRANSPOSED[dims - 1](
        *(weight.shape[0], weight.shape[1] * groups, tuple(weight.shape[2:]), stride, pads[:dims], extra, groups),
        bias=call.has(2), dilation=dilation, device="meta",
    )  # fmt: skip
    module = _with_weights(call, made, 1, 2)
    return PaddedLayer(lambda x: x, nn.Sequential(module, _Cut(cut))) if any(cut) else module


def _pads_back(call: NodeCall, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    sizes = call.tensor(0).shape[2:]
    wanted = call.of("output_shape", [size * by for size, by in zip(sizes, stride, strict=True)])[-len(kernel) :]
    before, behind = [], []
    for size, k, s, d, out in zip(sizes, kernel, stride, dilation, wanted, strict=True):
        total = max(s * (size - 1) + d * (k - 1) + 1 - out, 0)
        before.append(total // 2)
        behind.append(total - total // 2)
    return before + behind


class _Cut(nn.Module):
    """Cuts off what padding of a transposed convolution that differs from side to side takes away."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self._sizes = sizes

    def forward(self, x: Tensor) -> Tensor:
        for at, size in enumerate(self._sizes):
            x = x.narrow(at + 2, 0, x.shape[at + 2] - size) if size > 0 else x
        return x


@converts("BatchNormalization")
def _batch_norm(call: NodeCall) -> Function:
    call.take(0)
    x = call.tensor(0)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}.get(x.dim())
    if kind is None:
        raise call.refused(f"{x.dim()} dimensions")
    module = kind(x.shape[1], call.of("epsilon", 1e-5), 1 - call.of("momentum", 0.9), device="meta")
    _with_weights(call, module, 1, 2)
    module.running_mean, module.running_var = stored(call, 3), stored(call, 4)
    return module


@converts("LayerNormalization")
def _layer_norm(call: NodeCall) -> Function:
    axis, x = call.of("axis", -1), call.tensor(0)
    shape = x.shape[axis if axis < 0 else axis - x.dim() :]
    if not call.is_parameter(1) or tuple(call.tensor(1).shape) != tuple(shape):
        call.take(0, 1, *([2] if call.has(2) else []))
        return lambda x, *affine: functional.layer_norm(x, shape, *affine, eps=call.of("epsilon", 1e-5))
    call.take(0)
    module = nn.LayerNorm(shape, call.of("epsilon", 1e-5), bias=call.has(2), device="meta")
    return _with_weights(call, module, 1, 2)


@converts("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(call: NodeCall) -> Function:
    call.take(0, 1)
    axis, x = call.of("axis", -1), call.tensor(0)
    shape = list(x.shape[axis if axis < 0 else axis - x.dim() :])
    return lambda x, weight: functional.rms_norm(x, shape, weight, call.of("epsilon", 1e-5))


@converts("InstanceNormalization")
def _instance_norm(call: NodeCall) -> Function:
    eps = call.of("epsilon", 1e-5)
    if not call.is_parameter(1):
        call.take(0)
        return lambda x: functional.instance_norm(x, eps=eps)
    x = call.tensor(0)
    kind = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[x.dim()]
    call.take(0)
    return _with_weights(call, kind(x.shape[1], eps, affine=True, device="meta"), 1, 2)


@converts("GroupNormalization")
def _group_norm(call: NodeCall) -> Function:
    call.take(0)
    groups, channels = call.attributes["num_groups"], call.tensor(0).shape[1]
    module = nn.GroupNorm(groups, channels, call.of("epsilon", 1e-5), device="meta")
    return _with_weights(call, module, 1, 2)


@converts("elbowroom.GroupNorm")
def _merged_group_norm(call: NodeCall) -> Function:
    call.take(0)
    module = nn.GroupNorm(call.attributes["groups"], call.tensor(0).shape[1], call.attributes["eps"], device="meta")
    return _with_weights(call, module, 1, 2)


@converts("Gemm")
def _gemm(call: NodeCall) -> Function:
    alpha, beta, turned = call.of("alpha", 1.0), call.of("beta", 1.0), call.of("transB", 0)
    plain = alpha == 1.0 and beta == 1.0 and not call.of("transA", 0)
    bias_ok = not call.has(2) or (call.is_parameter(2) and call.tensor(2).dim() == 1)
    if plain and turned and call.is_parameter(1) and bias_ok:
        return _linear(call, call.tensor(1).shape[0], call.tensor(1).shape[1])
    call.take(*(place for place in (0, 1, 2) if call.has(place)))

    def run(left: Tensor, right: Tensor, *bias: Tensor) -> Tensor:
        left, right = left.t() if call.of("transA", 0) else left, right.t() if turned else right
        return torch.addmm(bias[0], left, right, beta=beta, alpha=alpha) if bias else alpha * (left @ right)

    return run


def _linear(call: NodeCall, out: int, width: int) -> nn.Module:
    call.take(0)
    return _with_weights(call, nn.Linear(width, out, bias=call.has(2), device="meta"), 1, 2)


@converts("elbowroom.Linear")
def _merged_linear(call: NodeCall) -> Function:
    return _linear(call, *call.tensor(1).shape)


class AttentionCall(nn.Module):
    """One call of scaled_dot_product_attention, with dropout in training alone."""

    def __init__(self, scale: float, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self._scale, self._causal, self._dropout = scale, causal, dropout

    def forward(self, q_NHTE: Tensor, k_NHSE: Tensor, v_NHSE: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend: [N, H, T, E]."""
        rate = self._dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(
            q_NHTE, k_NHSE, v_NHSE, mask, rate, self._causal, scale=self._scale
        )


@converts("elbowroom.Attention")
def _attention(call: NodeCall) -> Function:
    call.take(*(place for place in range(4) if call.has(place)))
    attributes = call.attributes
    return AttentionCall(attributes["scale"], causal=bool(attributes["causal"]), dropout=attributes["dropout"])


@converts("Attention")
def _onnx_attention(call: NodeCall) -> Function:
    if call.tensor(0).dim() != 4 or any(call.has(place) for place in (4, 5)):
        raise call.refused("packed heads or a cache of keys")
    call.take(*(place for place in range(4) if call.has(place)))
    scale, causal = call.of("scale", None), bool(call.of("is_causal", 0))
    grouped = call.tensor(0).shape[1] != call.tensor(1).shape[1]
    return lambda q, k, v, mask=None: functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


@converts("PRelu")
def _prelu(call: NodeCall) -> Function:
    if is_weight(call.value(1)):
        call.take(0)
        slope = call.parameter(1)
        module = nn.PReLU(slope.numel(), device="meta")
        module.weight = derived(slope, (slope.numel(),), lambda array: array.reshape(-1))
        return module
    call.take(0, 1)
    return lambda x, slope: torch.where(x > 0, x, x * slope)


@converts("MaxPool", "AveragePool", "LpPool")
def _pool(call: NodeCall) -> Function:
    call.take(0)
    kernel = call.attributes["kernel_shape"]
    dims = len(kernel)
    stride, dilation = call.of("strides", [1] * dims), call.of("dilations", [1] * dims)
    pads, up = _pads(call, kernel, stride, dilation), bool(call.of("ceil_mode", 0))
    if call.op == "MaxPool":
        pad = _padded(pads, -math.inf)
        padding = [0] * dims if pad else pads[0]
        function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[dims - 1]
        pick = call.outputs > 1
        return lambda x: function(pad(x) if pad else x, kernel, stride, padding, dilation, up, return_indices=pick)
    pad = _padded(pads)
    padding, whole = [0] * dims if pad else pads[0], bool(call.of("count_include_pad", 0))
    if call.op == "LpPool":
        power = call.of("p", 2)
        lp = (functional.lp_pool1d, functional.lp_pool2d, functional.lp_pool3d)[dims - 1]
        return lambda x: lp(pad(x) if pad else x, power, kernel, stride, up)
    average = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[dims - 1]
    return lambda x: average(pad(x) if pad else x, kernel, stride, padding, up, whole)


@converts("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: NodeCall) -> Function:
    call.take(0)
    dims = call.tensor(0).dim() - 2
    if call.op == "GlobalAveragePool":
        average = (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)[
            dims - 1
        ]
        return lambda x: average(x, 1)
    largest = (functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d)[dims - 1]
    return lambda x: largest(x, 1)
