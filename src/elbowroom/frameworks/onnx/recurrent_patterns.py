"""Recurrent patterns: layers of one LSTM, GRU or RNN of PyTorch, which a file has as one node each.

cuDNN runs all layers in one call, batch first if that is wanted, and holds less than a call for each layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from elbowroom.frameworks.onnx.bound_graph import renamed
from elbowroom.frameworks.onnx.graph_view import GraphView, Match
from elbowroom.frameworks.onnx.onnx_graph import GraphNode

KINDS = ("LSTM", "GRU", "RNN")
BATCH_FIRST = [1, 0, 2]
SPLIT = [0, 2, 1, 3]
"""How [T, D, N, H] becomes [T, N, D, H]."""


class Layer(NamedTuple):
    """A layer of a stack.

    Attributes:
        node: its node.
        dropout: rate of the dropout in front of it.
    """

    node: GraphNode
    dropout: float


def recurrent_stack(view: GraphView, node: GraphNode) -> Match:
    """Layers whose results are squeezed to [T, N, D*H], from the last one down; batch first between Transposes."""
    turned = node.op == "Transpose" and list(node.attributes.get("perm", ())) == BATCH_FIRST
    last = _layer_of(view, node.inputs[0]) if turned else _layer_at(view, node)
    if last is None:
        return []
    layers, given = _stack(view, last)
    first = view.made(given, "Transpose")
    if turned and (first is None or list(first.attributes.get("perm", ())) != BATCH_FIRST):
        return []
    source = first.inputs[0] if turned and first else given
    weights = [name for layer in layers for name in _weights(layer.node)]
    dropouts = [layer.dropout for layer in layers[1:]]
    found = renamed(
        node,
        "elbowroom.Recurrent",
        (source, *weights),
        **{name: value for name, value in last.attributes.items() if name != "layout"},
        kind=last.op,
        layers=len(layers),
        dropout=dropouts[0] if dropouts else 0.0,
        batch_first=int(turned),
    )
    return [replace(found, name=last.name or node.name)]


def _stack(view: GraphView, last: GraphNode) -> tuple[list[Layer], str]:
    """Return the layers from the first one, and what the first one gets."""
    layers, given = [Layer(last, 0.0)], last.inputs[0]
    while True:
        dropped = view.made(given, "Dropout")
        below = _layer_of(view, dropped.inputs[0] if dropped else given)
        same = below is not None and all(
            below.attributes.get(name) == last.attributes.get(name) for name in ("hidden_size", "direction")
        )
        if below is None or below.op != last.op or not same:
            return layers, given
        layers[0] = layers[0]._replace(dropout=dropout_rate(view, dropped))
        layers.insert(0, Layer(below, 0.0))
        given = below.inputs[0]


def dropout_rate(view: GraphView, dropped: GraphNode | None) -> float:
    """Return the rate of a Dropout; 0 where there is none."""
    if dropped is None:
        return 0.0
    rate = view.number(dropped.inputs[1]) if len(dropped.inputs) > 1 else dropped.attributes.get("ratio", 0.5)
    return float(rate or 0.0)


def _layer_of(view: GraphView, name: str) -> GraphNode | None:
    """Return the layer whose result, squeezed, is a value."""
    made = next((node for op in ("Squeeze", "Reshape") if (node := view.made(name, op))), None)
    return None if made is None else _layer_at(view, made)


def _layer_at(view: GraphView, node: GraphNode) -> GraphNode | None:
    """Return the layer whose result a node squeezes, if nothing else of it is used."""
    source = node.inputs[0]
    if node.op == "Reshape":
        split = view.made(source, "Transpose")
        if split is None or list(split.attributes.get("perm", ())) != SPLIT:
            return None
        source = split.inputs[0]
    elif node.op != "Squeeze":
        return None
    found = next((made for kind in KINDS if (made := view.made(source, kind))), None)
    if found is None or found.outputs[0] != source or any(view.is_used(name) for name in found.outputs[1:]):
        return None
    given = [name for name in found.inputs[4:] if name]
    ours = all(view.known(name) is not None and not view.known(name).any() for name in given)  # pyright: ignore[reportOptionalMemberAccess]
    bias = len(found.inputs) > 3 and bool(found.inputs[3])
    both_ways = found.attributes.get("direction", "forward") == "bidirectional"
    return found if ours and bias and both_ways == (node.op == "Reshape") and _forward(found) else None


def _forward(node: GraphNode) -> bool:
    gates_ours = node.op != "GRU" or bool(node.attributes.get("linear_before_reset", 0))
    return gates_ours and node.attributes.get("direction", "forward") != "reverse"


def _weights(node: GraphNode) -> tuple[str, ...]:
    return tuple(node.inputs[1:4])
