"""Graph patterns: layers of PyTorch that an exporter wrote as several nodes, found again.

`nn.Linear` on [N, T, C] is a MatMul and an Add in a file, `nn.LayerNorm` nine nodes, `gelu` five. Node by node these
hold several times as much as PyTorch's one op. A pattern is what torch.onnx writes for the op. What people write by
hand in other ways (GELU with Pow, attention that is divided by a root) stays as it is, as it was in the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from elbowroom.frameworks.onnx.bound_graph import BoundGraph, renamed
from elbowroom.frameworks.onnx.graph_view import EXACT, GraphView, Match
from elbowroom.frameworks.onnx.onnx_graph import GraphNode
from elbowroom.frameworks.onnx.recurrent_patterns import dropout_rate, recurrent_stack

LEAST = -1e4
"""Numbers below it hide a place from attention."""


def matched(bound: BoundGraph) -> list[GraphNode]:
    """Return the nodes that are needed, with the layers that were found in the place of their parts."""
    view, needed = GraphView(bound), set(bound.graph.outputs)
    found: list[GraphNode] = []
    for node in reversed(bound.nodes):
        if not needed.intersection(node.outputs):
            continue
        made = next(filter(None, (pattern(view, node) for pattern in PATTERNS.get(node.op, ()))), [node])
        needed.update(name for each in made for name in each.inputs)
        found += reversed(made)
    return found[::-1]


def _linear(view: GraphView, node: GraphNode) -> Match:
    """MatMul of a weight [I, O], or of one that is turned, with or without the bias that is added to it."""
    bias = ""
    product = node if node.op == "MatMul" else None
    if product is None:
        for bias, name in view.either(node):
            product = view.made(name, "MatMul")
            if product is not None and view.parameter(bias) is not None:
                break
        else:
            return []
    given, name = product.inputs
    x, weight = view.tensor(given), _turned(view, name)
    width = None if weight is None else view.bound.values[weight].shape[0]  # pyright: ignore[reportOptionalMemberAccess]
    if x is None or x.dim() < 2 or isinstance(x, nn.Parameter) or weight is None:
        return []
    if bias and view.parameter(bias, int(width or 0)) is None:
        return []
    found = renamed(node, "elbowroom.Linear", (given, weight, *([bias] if bias else [])))
    return [replace(found, name=product.name or node.name)]


def _turned(view: GraphView, name: str) -> str | None:
    """Return the weight [O, I] of a linear layer whose MatMul takes [I, O]."""
    turn, made = view.bound.values.get(name), view.made(name, "Transpose", None)
    if made is not None and view.parameter(made.inputs[0]) is not None:
        return made.inputs[0] if list(made.attributes.get("perm", [1, 0])) == [1, 0] else None
    if not isinstance(turn, nn.Parameter) or turn.dim() != 2:
        return None
    tied = _tied(view, name)
    if tied is not None:
        return tied
    return view.bound.weight(f"{name}^T", name, tuple(turn.shape[::-1]), lambda array: array.t())


def _tied(view: GraphView, name: str) -> str | None:
    """Return a weight with the same numbers, turned: exporters store a tied one a second time."""
    weights = view.bound.graph.weights
    own = weights[name].values if name in weights else None
    if own is None:
        return None
    for other, weight in weights.items():
        same = other != name and weight.values is not None and weight.shape == own.shape[::-1]
        if same and view.parameter(other) is not None and np.array_equal(np.asarray(weight.values), own.T):
            return other
    return None


def _layer_norm(view: GraphView, node: GraphNode) -> Match:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps), with or without weight and bias."""
    scale, bias, core = "", "", node
    if node.op == "Add":
        for bias, name in view.either(node):
            product = view.made(name, "Mul")
            if view.parameter(bias) is not None and product is not None:
                break
        else:
            return []
        for scale, name in view.either(product):
            inner = view.made(name, "Div")
            if view.parameter(scale) is not None and inner is not None:
                core = inner
                break
        else:
            return []
    return _normed(view, node, core, [scale, bias] if scale else [])


def _normed(view: GraphView, node: GraphNode, core: GraphNode, affine: Sequence[str]) -> Match:
    above, root = core.inputs
    difference = view.made(above, "Sub", 2)
    inner = view.made(root, "Sqrt")
    total = view.made(inner.inputs[0], "Add") if inner else None
    if difference is None or total is None:
        return []
    for eps, name in view.either(total):
        mean, number = view.made(name, "ReduceMean"), view.number(eps)
        square = view.made(mean.inputs[0], "Pow") if mean else None
        if mean is None or number is None or square is None or square.inputs[0] != above:
            continue
        center = view.made(difference.inputs[1], "ReduceMean")
        if center is None or center.inputs[0] != difference.inputs[0]:
            continue
        axes = _axes(view, mean)
        shape = _last(view, difference.inputs[0], axes)
        if any(view.parameter(name, *shape) is None for name in affine):
            continue
        return [renamed(node, "LayerNormalization", (difference.inputs[0], *affine), axis=min(axes), epsilon=number)]
    return []


def _axes(view: GraphView, node: GraphNode) -> list[int]:
    given = node.attributes.get("axes")
    if given is None and node.inputs[1:]:
        given = view.known(node.inputs[-1])
    tensor = next(view.tensor(name) for name in node.inputs)
    dims = 0 if tensor is None else tensor.dim()
    return [-1] if given is None else [int(axis) - dims if axis >= 0 else int(axis) for axis in given]


def _last(view: GraphView, name: str, axes: Sequence[int]) -> tuple[int, ...]:
    tensor = view.tensor(name)
    return () if tensor is None else tuple(tensor.shape[min(axes) :])


def _gelu(view: GraphView, node: GraphNode) -> Match:
    """GELU as x * (erf(x / sqrt 2) + 1) * 0.5."""
    product = view.made(view.with_number(node, 0.5), "Mul")
    for x, name in view.either(product):
        inner = view.made(view.with_number(view.made(name, "Add"), 1.0), "Erf")
        divided = view.made(inner.inputs[0], "Div") if inner else None
        root = view.number(divided.inputs[1]) if divided else None
        if divided and root and divided.inputs[0] == x and math.isclose(root, math.sqrt(2), rel_tol=EXACT):
            return [renamed(node, "Gelu", (x,))]
    return []


def _half_gelu(view: GraphView, node: GraphNode) -> Match:
    """GELU as x * (0.5 * (1 + erf(x * sqrt 0.5))), as newer exporters write it."""
    for x, name in view.either(node):
        half = view.made(view.with_number(view.made(name, "Mul"), 0.5), "Add")
        inner = view.with_number(half, 1.0)
        erf = view.made(inner, "Erf")
        scaled = view.made(erf.inputs[0], "Div") if erf else None
        if scaled and scaled.inputs[0] == x:
            return [renamed(node, "Gelu", (x,))]
        if erf and view.with_number(view.made(erf.inputs[0], "Mul"), math.sqrt(0.5)) == x:
            return [renamed(node, "Gelu", (x,))]
    return []


def _silu(view: GraphView, node: GraphNode) -> Match:
    """Find x * sigmoid(x), x * hardsigmoid(x) and x * tanh(softplus(x))."""
    for x, name in view.either(node):
        gate = view.made(name, "Sigmoid")
        if gate and gate.inputs[0] == x:
            return [renamed(node, "elbowroom.Silu", (x,))]
        gate = view.made(name, "HardSigmoid")
        if gate and gate.inputs[0] == x and math.isclose(gate.attributes.get("alpha", 0.2), 1 / 6, rel_tol=EXACT):
            return [renamed(node, "HardSwish", (x,))]
        soft = view.made(name, "Tanh")
        if soft and (inner := view.made(soft.inputs[0], "Softplus")) and inner.inputs[0] == x:
            return [renamed(node, "Mish", (x,))]
    return []


def _hard_swish(view: GraphView, node: GraphNode) -> Match:
    """Find x * relu6(x + 3) / 6."""
    product = view.made(view.with_number(node, 6.0), "Mul")
    for x, name in view.either(product):
        clipped = view.made(name, "Clip")
        if clipped and view.with_number(view.made(clipped.inputs[0], "Add"), 3.0) == x:
            return [renamed(node, "HardSwish", (x,))]
    return []


def _attention(view: GraphView, node: GraphNode) -> Match:
    """Attention of scaled_dot_product_attention, which exporters scale on both sides by the root of its factor."""
    dropped = view.made(node.inputs[0], "Dropout")
    chances = view.made(dropped.inputs[0] if dropped else node.inputs[0], "Softmax")
    scores, mask = _scores(view, chances.inputs[0]) if chances else (None, "")
    if scores is None:
        return []
    left, right = (_scaled(view, name) for name in scores.inputs)
    if left is None or right is None or not math.isclose(left[1], right[1], rel_tol=EXACT):
        return []
    turn = view.made(right[0], "Transpose")
    if turn is None:
        return []
    keys, causal = _untransposed(turn), bool(mask) and _is_causal(view.known(mask))
    key = keys[0].outputs[0] if keys else turn.inputs[0]
    inputs = (left[0], key, node.inputs[1], *([mask] if mask and not causal else []))
    scale, rate = left[1] * right[1], dropout_rate(view, dropped)
    return [*keys, renamed(node, "elbowroom.Attention", inputs, scale=scale, causal=int(causal), dropout=rate)]


def _scores(view: GraphView, name: str) -> tuple[GraphNode | None, str]:
    """Return the product of queries and keys that a value is, and the mask that is added to it."""
    for mask, product in view.either(view.made(name, "Add")):
        scores = view.made(product, "MatMul")
        if scores is not None:
            return scores, mask
    return view.made(name, "MatMul"), ""


def _scaled(view: GraphView, name: str) -> tuple[str, float] | None:
    for factor, other in view.either(view.made(name, "Mul")):
        number = view.number(factor)
        if number is not None:
            return other, number
    return None


def _untransposed(turn: GraphNode) -> Match:
    """Return what is left of a Transpose without the swap of the last two dimensions; nothing if that is all it does.

    Exporters store Transposes that follow each other as one: [B, T, H, E] to [B, H, E, T].
    """
    order = list(turn.attributes.get("perm", ()))
    left = [*order[:-2], order[-1], order[-2]]
    if left == sorted(left):
        return []
    outputs = (f"{turn.outputs[0]}^T",)
    return [replace(turn, inputs=turn.inputs, outputs=outputs, attributes={"perm": left}, proto=None)]


def _is_causal(mask: np.ndarray | None) -> bool:
    """Return whether a mask hides exactly what comes later."""
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2] or mask.size != mask.shape[-1] ** 2:
        return False
    square = mask.reshape(mask.shape[-2:])
    hidden = square < LEAST
    return bool(np.array_equal(hidden, np.triu(np.ones_like(hidden), 1))) and not square[~hidden].any()


def _group_norm(view: GraphView, node: GraphNode) -> Match:
    """InstanceNormalization of groups between two Reshapes, with weight and bias of [C, 1, 1]."""
    for bias, name in view.either(node):
        product = view.made(name, "Mul")
        for scale, inner in view.either(product):
            back = view.made(inner, "Reshape")
            norm = view.made(back.inputs[0], "InstanceNormalization") if back else None
            there = view.made(norm.inputs[0], "Reshape") if norm else None
            tensor = view.tensor(there.inputs[0]) if there else None
            ones = view.known(norm.inputs[1]) if norm else None
            affine = [_channels(view, each, tensor) for each in (scale, bias)]
            if norm is None or there is None or ones is None or None in affine:
                continue
            names = [each for each in affine if each]
            eps = norm.attributes.get("epsilon", 1e-5)
            return [renamed(node, "elbowroom.GroupNorm", (there.inputs[0], *names), groups=ones.size, eps=eps)]
    return []


def _channels(view: GraphView, name: str, tensor: Tensor | None) -> str | None:
    """Return the weight [C] that is stored, or shaped, as [C, 1, 1]."""
    unsqueezed = view.made(name, "Unsqueeze")
    if tensor is None or tensor.dim() < 2:
        return None
    channels = tensor.shape[1]
    if unsqueezed is not None:
        return unsqueezed.inputs[0] if view.parameter(unsqueezed.inputs[0], channels) is not None else None
    found = view.parameter(name)
    if found is None or found.numel() != channels:
        return None
    return view.bound.weight(f"{name}[C]", name, (channels,), lambda array: array.reshape(-1))


Pattern = Callable[[GraphView, GraphNode], Match]
PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "Add": (_layer_norm, _group_norm, _linear),
    "Div": (_layer_norm, _hard_swish),
    "MatMul": (_attention, _linear),
    "Mul": (_gelu, _half_gelu, _silu),
    **dict.fromkeys(("Squeeze", "Reshape", "Transpose"), (recurrent_stack,)),
}
"""Patterns by the op of their last node, the longest first."""
