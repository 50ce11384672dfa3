"""Constant weights: weights that a file has as nodes, and not as stored arrays.

paddle2onnx and some simplifiers write each weight as a Constant. The light networks of ONNX's own tests make theirs by
ConstantOfShape, so that the files stay small. Where a layer takes its weight from such a node, or the file stores no
array of floats at all, all arrays of floats that nodes hold count as stored ones. Single numbers stay constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from elbowroom.frameworks.onnx.node_call import Notes
from elbowroom.frameworks.onnx.onnx_graph import VALUES_BYTES, GraphNode, OnnxGraph, Weight

OF_LAYERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1,)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2)),
}
"""Inputs that are weights, by op. No norms: torch.onnx writes a GroupNorm with ones and zeros in Constant nodes."""


def with_constant_weights(graph: OnnxGraph, *, values: bool, notes: Notes) -> OnnxGraph:
    """Return a graph whose weights are stored arrays, where its file has them as nodes.

    Args:
        graph: the graph.
        values: whether the numbers of large arrays are wanted.
        notes: called with what the answer has to say.
    """
    found = {node.outputs[0]: weight for node, weight in _held(graph, values)}
    taken = {
        node.inputs[place] for node in graph.nodes for place in OF_LAYERS.get(node.op, ()) if place < len(node.inputs)
    }
    stored = any("float" in weight.dtype and weight.shape for weight in graph.weights.values())
    if not found or (stored and not taken.intersection(found)):
        return graph
    notes("exported", f"{len(found)} arrays that the file has as constants are weights, as its layers take them")
    nodes = tuple(node for node in graph.nodes if not found.keys() & set(node.outputs))
    return replace(graph, nodes=nodes, weights={**graph.weights, **found})


def _held(graph: OnnxGraph, values: bool) -> Iterator[tuple[GraphNode, Weight]]:
    """Yield the nodes that hold an array of floats with more than one number, each with that array."""
    shapes = {name: weight.values for name, weight in graph.weights.items()}
    shapes |= {node.outputs[0]: node.attributes.get("value") for node in graph.nodes if node.op == "Constant"}
    for node in graph.nodes:
        given = node.attributes.get("value")
        if node.op == "Constant" and isinstance(given, np.ndarray) and given.dtype.kind == "f" and given.size > 1:
            yield node, Weight(shape=given.shape, dtype=given.dtype.name, values=given)
        shape = shapes.get(node.inputs[0]) if node.op == "ConstantOfShape" else None
        if shape is None or not (given is None or given.dtype.kind == "f") or int(np.prod(shape)) <= 1:
            continue
        number = np.float32(0) if given is None else given.reshape(())
        sizes = tuple(int(size) for size in shape)
        large = not values and int(np.prod(sizes)) * 8 > VALUES_BYTES
        numbers = None if large else np.full(sizes, number, dtype=number.dtype)
        yield node, Weight(shape=sizes, dtype=number.dtype.name, values=numbers)
