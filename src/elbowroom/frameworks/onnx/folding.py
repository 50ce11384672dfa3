"""Folding: what a graph computes of shapes and constants alone, computed here with ONNX's own reference.

Exporters write `x.view(x.size(0), -1)` as Shape, Gather, Concat and Reshape. With the shapes of the inputs known, only
Reshape is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elbowroom.frameworks.onnx.onnx_graph import GraphNode, library

NEVER = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Ops whose results are new in each step."""


def folded(node: GraphNode, inputs: Sequence[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """Return the outputs of a node all of whose inputs are known.

    Args:
        node: the node, of one of ONNX's own ops.
        inputs: its inputs, None for one that is left out.
        opset: version of the ops.
    """
    onnx = library()
    from onnx.reference import ReferenceEvaluator

    names = [name if value is not None else "" for name, value in zip(node.inputs, inputs, strict=True)]
    feeds: Mapping[str, np.ndarray] = {
        name: value for name, value in zip(names, inputs, strict=True) if name and value is not None
    }
    outputs = [name for name in node.outputs if name]
    graph = onnx.helper.make_graph(
        [node.proto],
        "node",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in feeds],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in outputs],
    )
    found = ReferenceEvaluator(graph, opsets={"": opset}).run(outputs, dict(feeds))
    return [np.asarray(each) for each in found]
