"""Folded norms: batch norms that an export for inference multiplied into the convolutions before them, put back.

torch.onnx names a convolution's weight onnx::Conv_123 where it is no parameter any more, and that is where a batch norm
was. A training holds its input for backward, and two weights and two statistics for each channel. Elsewhere a file does
not say whether there was one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from elbowroom.frameworks.onnx.node_call import Function, NodeCall, Notes
from elbowroom.frameworks.onnx.onnx_graph import GraphNode
from elbowroom.frameworks.onnx.onnx_ops import converts

FOLDED = re.compile(r"onnx::Conv_\d+")
NORMS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"})
BACK = (
    "batch norms that the export folded into convolutions are put back (leave them out with --folded; export with "
    "training=TrainingMode.TRAINING to keep them)"
)
OPEN = (
    "no layer of the graph normalizes: batch norms of the original that the export folded away are not counted (export "
    "with training=TrainingMode.TRAINING to keep them)"
)


@converts("elbowroom.BatchNorm")
def _batch_norm(call: NodeCall) -> Function:
    call.take(0)
    x = call.tensor(0)
    kind = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
    return kind(x.shape[1], device="meta", dtype=x.dtype)


def with_norms(nodes: Sequence[GraphNode], notes: Notes) -> list[GraphNode]:
    """Return the nodes with a batch norm behind each convolution whose weight is folded.

    Args:
        nodes: its nodes.
        notes: called once for each that is put back, and once if the graph leaves it open.
    """
    found: list[GraphNode] = []
    for node in nodes:
        if node.op != "Conv" or not FOLDED.fullmatch(node.inputs[1]):
            found.append(node)
            continue
        between = f"{node.outputs[0]}^norm"
        found.append(replace(node, inputs=node.inputs[:2], outputs=(between,)))
        norm = replace(node, op="elbowroom.BatchNorm", inputs=(between,), attributes={}, proto=None)
        found.append(replace(norm, name=re.sub(r"/[^/]*$", "_norm/BatchNormalization", node.name)))
        notes("exported", BACK)
    if len(found) == len(nodes) and _is_open(nodes):
        notes("exported", OPEN)
    return found


def _is_open(nodes: Sequence[GraphNode]) -> bool:
    convolutions = sum(node.op == "Conv" for node in nodes)
    return convolutions > 0 and not any(node.op in NORMS or node.op.endswith("GroupNorm") for node in nodes)
