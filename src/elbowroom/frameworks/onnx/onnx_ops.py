"""ONNX ops: ops without weights of their own, as functions of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.frameworks.onnx.node_call import Function, NodeCall, scalar, tensor_of, torch_dtype
from elbowroom.frameworks.onnx.onnx_graph import dtype_of, library

Converter = Callable[[NodeCall], Function]
OPS: dict[str, Converter] = {}
"""Converters by the name of their op."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Add a converter for ops of these names."""

    def added(converter: Converter) -> Converter:
        OPS.update(dict.fromkeys(names, converter))
        return converter

    return added


def _of_one(function: Function) -> Converter:
    def convert(call: NodeCall) -> Function:
        call.take(0)
        return function

    return convert


UNARY: dict[str, Function] = {
    **{name: getattr(torch, name.lower()) for name in ("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh")},
    **{name: getattr(torch, name.lower()) for name in ("Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Neg")},
    **{name: getattr(torch, name.lower()) for name in ("Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Sinh")},
    **{name: getattr(torch, name.lower()) for name in ("Sqrt", "Tan", "Tanh", "IsNaN", "IsInf")},
    "Not": torch.logical_not,
    "Relu": torch.relu,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "HardSwish": functional.hardswish,
    "Mish": functional.mish,
    "elbowroom.Silu": functional.silu,
}
for _name, _function in UNARY.items():
    OPS[_name] = _of_one(_function)


def _divided(left: Any, right: Any) -> Any:
    whole = not any(isinstance(each, Tensor) and each.is_floating_point() for each in (left, right))
    return torch.div(left, right, rounding_mode="trunc" if whole else None)


BINARY: dict[str, Function] = {
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": _divided,
    "Pow": lambda left, right: left**right,
    "Mod": lambda left, right: left % right,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "Equal": lambda left, right: left == right,
    "Greater": lambda left, right: left > right,
    "GreaterOrEqual": lambda left, right: left >= right,
    "Less": lambda left, right: left < right,
    "LessOrEqual": lambda left, right: left <= right,
}
_ON_TENSORS = ("And", "Or", "Xor")


def _binary(function: Function, op: str) -> Converter:
    def convert(call: NodeCall) -> Function:
        numbers = [None if op in _ON_TENSORS else _number(value) for value in call.values[:2]]
        if numbers[1] is not None:
            call.take(0)
            return lambda x: function(x, numbers[1])
        if numbers[0] is not None:
            call.take(1)
            return lambda x: function(numbers[0], x)
        call.take(0, 1)
        return _with_axis(function, call)

    return convert


def _with_axis(function: Function, call: NodeCall) -> Function:
    """Return the function; the right side lines up with an axis of the left one in opsets before 7."""
    axis = call.of("axis", None)
    if axis is None or not call.of("broadcast", 0):
        return function
    left, right = call.tensor(0).dim(), call.tensor(1).dim()
    behind = left - axis - right
    return lambda x, y: function(x, y.reshape(*y.shape, *(1,) * behind))


def _number(value: Any) -> float | int | None:
    found = scalar(value)
    return int(found) if found is not None and value.dtype.kind in "iub" else found


for _name, _function in BINARY.items():
    OPS[_name] = _binary(_function, _name)


@converts("Min", "Max", "Sum", "Mean")
def _many(call: NodeCall) -> Function:
    call.take(*range(len(call.values)))
    two = {"Min": torch.minimum, "Max": torch.maximum}.get(call.op, torch.add)
    share = len(call.values) if call.op == "Mean" else 1

    def run(*tensors: Tensor) -> Tensor:
        total = tensors[0]
        for each in tensors[1:]:
            total = two(total, each)
        return total / share if share > 1 else total

    return run


@converts("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Gelu", "Shrink", "Swish")
def _activation(call: NodeCall) -> Function:
    call.take(0)
    alpha = call.of("alpha", 0.01 if call.op == "LeakyRelu" else 1.0)
    if call.op == "HardSigmoid":
        slope, offset = call.of("alpha", 0.2), call.of("beta", 0.5)
        if math.isclose(slope, 1 / 6, rel_tol=1e-4) and offset == 0.5:
            return functional.hardsigmoid
        return lambda x: (x * slope + offset).clamp(0, 1)
    made: dict[str, Function] = {
        "LeakyRelu": lambda x: functional.leaky_relu(x, alpha),
        "Elu": lambda x: functional.elu(x, alpha),
        "Selu": functional.selu,
        "Celu": lambda x: functional.celu(x, alpha),
        "ThresholdedRelu": lambda x: functional.threshold(x, alpha, 0.0),
        "Gelu": lambda x: functional.gelu(x, approximate=call.of("approximate", "none")),
        "Shrink": lambda x: functional.softshrink(x, call.of("lambd", 0.5)),
        "Swish": functional.silu if alpha == 1.0 else lambda x: x * torch.sigmoid(x * alpha),
    }
    return made[call.op]


@converts("Clip")
def _clip(call: NodeCall) -> Function:
    call.take(0)
    least, most = call.number(1, "min"), call.number(2, "max")
    if (least, most) == (0.0, 6.0):
        return functional.relu6
    if least is not None and most is not None:
        return lambda x: functional.hardtanh(x, least, most)
    return lambda x: x.clamp(least, most)


@converts("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: NodeCall) -> Function:
    call.take(0)
    axis = call.of("axis", 1 if call.opset < 13 else -1)
    if call.op == "Hardmax":
        return lambda x: functional.one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)
    function = torch.softmax if call.op == "Softmax" else torch.log_softmax
    last = axis in (-1, call.tensor(0).dim() - 1)
    if call.opset >= 13 or last:
        return lambda x: function(x, axis)
    return lambda x: function(x.flatten(axis), -1).reshape(x.shape)


@converts("Dropout")
def _dropout(call: NodeCall) -> Function:
    call.take(0)
    if call.outputs > 1:
        raise call.refused("a mask that other nodes use")
    return nn.Dropout(call.number(1, "ratio", 0.5) or 0.0)


@converts("Identity")
def _identity(call: NodeCall) -> Function:
    call.take(0)
    return lambda x: x


@converts("Cast", "CastLike")
def _cast(call: NodeCall) -> Function:
    call.take(0)
    like = call.op == "CastLike"
    dtype = call.tensor(1).dtype if like else torch_dtype(dtype_of(library(), call.attributes["to"]))
    return lambda x: x.to(dtype)


@converts("Reshape")
def _reshape(call: NodeCall) -> Function:
    call.take(0)
    x, shape = call.tensor(0), call.ints(1, "shape")
    if shape is None:
        raise call.refused("no shape")
    wanted = [x.shape[at] if size == 0 and not call.of("allowzero", 0) else size for at, size in enumerate(shape)]
    wanted = with_batch(wanted, x, call.batch)
    return lambda x: x.reshape(wanted)


def with_batch(shape: list[int], x: Tensor, batch: tuple[int, int]) -> list[int]:
    """Return a shape with the batch that is wanted as its first dimension, if what the graph fixes does not fit."""
    fixed, wanted = batch
    known = math.prod(size for size in shape if size != -1)
    fits = x.numel() % known == 0 if -1 in shape else x.numel() == known
    if fixed == wanted or not shape or shape[0] <= 0 or shape[0] % fixed:
        return shape
    scaled = [shape[0] // fixed * wanted, *shape[1:]]
    return scaled if -1 in shape or not fits else shape


@converts("Flatten")
def _flatten(call: NodeCall) -> Function:
    call.take(0)
    axis, dims = call.of("axis", 1), call.tensor(0).dim()
    axis = axis + dims if axis < 0 else axis
    if axis == 1:
        return lambda x: x.flatten(1) if dims > 1 else x.unsqueeze(1)
    return lambda x: x.reshape(math.prod(x.shape[:axis]), -1)


@converts("Transpose")
def _transpose(call: NodeCall) -> Function:
    call.take(0)
    order = call.of("perm", list(reversed(range(call.tensor(0).dim()))))
    moved = [at for at, of in enumerate(order) if at != of]
    if len(moved) == 2:  # what was written is most likely transpose(a, b)
        return lambda x: x.transpose(*moved)
    return lambda x: x.permute(order)


@converts("Squeeze", "Unsqueeze")
def _squeeze(call: NodeCall) -> Function:
    call.take(0)
    axes, dims = call.ints(1, "axes"), call.tensor(0).dim()
    if call.op == "Squeeze":
        return lambda x: x.squeeze() if axes is None else x.squeeze(tuple(axes))
    places = sorted(axis + dims + len(axes or ()) if axis < 0 else axis for axis in axes or ())

    def run(x: Tensor) -> Tensor:
        for axis in places:
            x = x.unsqueeze(axis)
        return x

    return run


@converts("Concat")
def _concat(call: NodeCall) -> Function:
    call.take(*range(len(call.values)))
    axis = call.of("axis", 1)
    return lambda *tensors: torch.cat(tensors, axis)


@converts("Split")
def _split(call: NodeCall) -> Function:
    call.take(0)
    axis, sizes = call.of("axis", 0), call.ints(1, "split")
    if sizes is None:
        size = math.ceil(call.tensor(0).shape[axis] / call.of("num_outputs", call.outputs))
        return lambda x: x.split(size, axis)
    return lambda x: x.split(sizes, axis)


@converts("Slice")
def _slice(call: NodeCall) -> Function:
    call.take(0)
    starts, ends = call.ints(1, "starts") or [], call.ints(2, "ends") or []
    axes, steps = call.ints(3, "axes") or list(range(len(starts))), call.ints(4) or [1] * len(starts)
    shape = call.tensor(0).shape

    def run(x: Tensor) -> Tensor:
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if step < 0:
                kept = list(range(shape[axis]))[slice(start, None if end < -shape[axis] else end, step)]
                x = (
                    x.flip(axis)
                    if len(kept) == shape[axis]
                    else x.index_select(axis, torch.tensor(kept, device=x.device))
                )
            else:
                index = [slice(None)] * x.dim()
                index[axis] = slice(start, min(end, shape[axis]), step)
                x = x[tuple(index)]
        return x

    return run


@converts("Gather")
def _gather(call: NodeCall) -> Function:
    axis, indices = call.of("axis", 0), call.value(1)
    number = scalar(indices)
    if number is not None and isinstance(indices, np.ndarray):
        call.take(0)
        one = (lambda x: x.select(axis, int(number))) if not indices.ndim else None
        return one or (lambda x: x.narrow(axis, int(number), 1).reshape(_gathered(x, axis, indices.shape)))
    call.take(0, 1)
    if call.is_parameter(0) and axis == 0:
        return lambda weight, ids: functional.embedding(ids.long(), weight)

    def run(x: Tensor, ids: Tensor) -> Tensor:
        flat = torch.where(ids < 0, ids + x.shape[axis], ids) if isinstance(indices, np.ndarray) else ids
        found = x.index_select(axis, flat.reshape(-1).long())
        return found.reshape(_gathered(x, axis, ids.shape))

    return run


def _gathered(x: Tensor, axis: int, shape: Sequence[int]) -> list[int]:
    axis = axis + x.dim() if axis < 0 else axis
    return [*x.shape[:axis], *shape, *x.shape[axis + 1 :]]


@converts("GatherElements")
def _gather_elements(call: NodeCall) -> Function:
    call.take(0, 1)
    axis = call.of("axis", 0)
    return lambda x, ids: x.gather(axis, ids.long())


@converts("GatherND")
def _gather_nd(call: NodeCall) -> Function:
    call.take(0, 1)
    if call.of("batch_dims", 0):
        raise call.refused("batch_dims")
    return lambda x, ids: x[tuple(ids.long().unbind(-1))]


@converts("ScatterND", "ScatterElements", "Scatter")
def _scatter(call: NodeCall) -> Function:
    call.take(0, 1, 2)
    axis = call.of("axis", 0)
    if call.op == "ScatterND":
        return lambda x, ids, new: x.index_put(tuple(ids.long().unbind(-1)), new)
    return lambda x, ids, new: x.scatter(axis, ids.long(), new)


@converts("Expand")
def _expand(call: NodeCall) -> Function:
    call.take(0)
    shape = call.ints(1) or []
    whole = list(torch.broadcast_shapes(tuple(call.tensor(0).shape), tuple(shape)))
    return lambda x: x.expand(whole)


@converts("Tile")
def _tile(call: NodeCall) -> Function:
    call.take(0)
    repeats = call.ints(1) or []
    return lambda x: x.repeat(repeats)


@converts("Where")
def _where(call: NodeCall) -> Function:
    numbers = [_number(value) for value in call.values[1:3]]
    if numbers[0] is not None and numbers[1] is None:
        call.take(0, 2)
        return lambda mask, x: x.masked_fill(mask, numbers[0])
    if numbers[1] is not None and numbers[0] is None:
        call.take(0, 1)
        return lambda mask, x: x.masked_fill(~mask, numbers[1])
    call.take(0, 1, 2)
    return torch.where


@converts("ConstantOfShape", "EyeLike", "Shape", "Size")
def _made(call: NodeCall) -> Function:
    raise call.refused("a shape that depends on what the network computes")


REDUCTIONS: dict[str, Function] = {
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keep),
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
}


@converts(*REDUCTIONS)
def _reduced(call: NodeCall) -> Function:
    call.take(0)
    axes, keep = call.ints(1, "axes"), bool(call.of("keepdims", 1))
    function = REDUCTIONS[call.op]
    if axes is None and call.of("noop_with_empty_axes", 0):
        return lambda x: x
    places = tuple(range(call.tensor(0).dim())) if axes is None else tuple(axes)
    return lambda x: function(x, places, keep)


@converts("ReduceProd")
def _product(call: NodeCall) -> Function:
    call.take(0)
    axes, keep = call.ints(1, "axes") or list(range(call.tensor(0).dim())), bool(call.of("keepdims", 1))

    def run(x: Tensor) -> Tensor:
        for axis in sorted(axes, reverse=True):
            x = x.prod(axis, keepdim=keep)
        return x

    return run


@converts("ArgMax", "ArgMin")
def _arg(call: NodeCall) -> Function:
    call.take(0)
    axis, keep = call.of("axis", 0), bool(call.of("keepdims", 1))
    function = torch.argmax if call.op == "ArgMax" else torch.argmin
    return lambda x: function(x, axis, keep)


@converts("TopK")
def _top(call: NodeCall) -> Function:
    call.take(0)
    count, axis = int(call.number(1, "k", 1) or 1), call.of("axis", -1)
    largest, ordered = bool(call.of("largest", 1)), bool(call.of("sorted", 1))
    return lambda x: torch.topk(x, count, axis, largest, ordered)


@converts("CumSum")
def _running_sum(call: NodeCall) -> Function:
    call.take(0)
    axis = int(call.number(1, default=0) or 0)
    return lambda x: x.cumsum(axis)


@converts("Trilu")
def _triangle(call: NodeCall) -> Function:
    call.take(0)
    diagonal, upper = int(call.number(1, default=0) or 0), bool(call.of("upper", 1))
    return lambda x: torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


@converts("OneHot")
def _one_hot(call: NodeCall) -> Function:
    call.take(0)
    depth, axis = int(call.number(1) or 0), call.of("axis", -1)
    dtype = call.tensor(2).dtype
    return lambda x: functional.one_hot(x.long(), depth).movedim(-1, axis).to(dtype)


@converts("Einsum")
def _einsum(call: NodeCall) -> Function:
    call.take(*range(len(call.values)))
    equation = call.attributes["equation"]
    return lambda *tensors: torch.einsum(equation, *tensors)


@converts("MatMul")
def _matmul(call: NodeCall) -> Function:
    call.take(0, 1)
    return torch.matmul


@converts("Range", "NonZero", "NonMaxSuppression")
def _counted(call: NodeCall) -> Function:
    raise call.refused("a result whose size depends on what the network computes")


@converts("Pad")
def _pad(call: NodeCall) -> Function:
    call.take(0)
    pads, dims = call.ints(1, "pads") or call.ints(1, "paddings") or [], call.tensor(0).dim()
    value, axes = call.number(2, "value", 0.0), call.ints(3) or list(range(dims))
    around = {axis % dims: (pads[at], pads[at + len(axes)]) for at, axis in enumerate(axes)}
    mode = {"edge": "replicate", "wrap": "circular", "reflect": "reflect"}.get(call.of("mode", "constant"), "constant")
    if mode == "constant":
        words = [size for axis in reversed(range(dims)) for size in around.get(axis, (0, 0))]
        while len(words) > 2 and words[-2:] == [0, 0]:  # a pad by nothing copies, as in the original
            words = words[:-2]
        return lambda x: functional.pad(x, words, value=value)
    first = next((axis for axis in range(dims) if any(around.get(axis, ()))), dims)
    kept = 2 if first >= 2 and dims > 2 else 1  # torch pads all dimensions but batch and channels, or but channels
    if first < kept:
        raise call.refused(f"padding by {mode} along its first dimension")
    words = [size for axis in reversed(range(kept, dims)) for size in around.get(axis, (0, 0))]
    return lambda x: functional.pad(x, words, mode=mode)


@converts("DepthToSpace", "SpaceToDepth")
def _shuffled(call: NodeCall) -> Function:
    call.take(0)
    size = call.attributes["blocksize"]
    if call.op == "SpaceToDepth":
        return lambda x: functional.pixel_unshuffle(x, size)
    if call.of("mode", "DCR") == "CRD":
        return lambda x: functional.pixel_shuffle(x, size)

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
        return parts.reshape(n, c // size**2, h * size, w * size)

    return run


@converts("Resize", "Upsample")
def _resized(call: NodeCall) -> Function:
    call.take(0)
    shape = call.tensor(0).shape
    scales_at = 1 if call.op == "Upsample" or call.opset < 11 else 2
    scales, sizes = call.array(scales_at, "scales"), call.ints(3)
    if sizes is not None:
        wanted = sizes[2:] if len(sizes) == len(shape) else sizes
    elif scales is not None and scales.size:
        wanted = [math.floor(size * float(by)) for size, by in zip(shape[2:], scales.reshape(-1)[2:], strict=True)]
    else:
        raise call.refused("neither scales nor sizes")
    mode = call.of("mode", "nearest")
    if mode == "nearest":
        return lambda x: functional.interpolate(x, size=wanted, mode="nearest")
    smooth = "bicubic" if mode == "cubic" else {3: "linear", 4: "bilinear", 5: "trilinear"}[len(shape)]
    corners = call.of("coordinate_transformation_mode", "") == "align_corners"
    return lambda x: functional.interpolate(x, size=wanted, mode=smooth, align_corners=corners)


@converts("LRN")
def _local_norm(call: NodeCall) -> Function:
    call.take(0)
    size, alpha = call.attributes["size"], call.of("alpha", 1e-4)
    beta, bias = call.of("beta", 0.75), call.of("bias", 1.0)
    return lambda x: functional.local_response_norm(x, size, alpha, beta, bias)


@converts("LpNormalization")
def _unit(call: NodeCall) -> Function:
    call.take(0)
    return lambda x: functional.normalize(x, call.of("p", 2), call.of("axis", -1))


@converts("MeanVarianceNormalization")
def _standard(call: NodeCall) -> Function:
    call.take(0)
    axes = call.of("axes", [0, 2, 3])
    return lambda x: (x - x.mean(axes, True)) / (x.var(axes, False, True).sqrt() + 1e-9)


@converts("GridSample")
def _sampled(call: NodeCall) -> Function:
    call.take(0, 1)
    mode = {"cubic": "bicubic", "bicubic": "bicubic", "nearest": "nearest"}.get(call.of("mode", ""), "bilinear")
    padding, corners = call.of("padding_mode", "zeros"), bool(call.of("align_corners", 0))
    return lambda x, grid: functional.grid_sample(x, grid, mode, padding, corners)


@converts("RandomNormalLike", "RandomUniformLike")
def _noise(call: NodeCall) -> Function:
    call.take(0)
    return torch.randn_like if call.op == "RandomNormalLike" else torch.rand_like


def constant_of(attributes: Any) -> np.ndarray:
    """Return the value of a Constant node."""
    if "value" in attributes:
        return np.asarray(attributes["value"])
    name, value = next(iter(attributes.items()))
    return np.asarray(value, dtype=np.float32 if "float" in name else np.int64 if "int" in name else None)


__all__ = ["OPS", "Converter", "constant_of", "converts", "tensor_of", "with_batch"]
