"""In place: activations and sums that overwrite what no backward reads, as torchvision's networks do.

A file does not say whether `nn.ReLU(inplace=True)` was written. Where it was, the network holds less at its peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from elbowroom.frameworks.onnx.bound_graph import Converted
from elbowroom.frameworks.onnx.onnx_graph import GraphNode

FRESH = frozenset(
    {
        *("Conv", "ConvTranspose", "Gemm", "elbowroom.Linear", "elbowroom.GroupNorm", "LayerNormalization", "Add"),
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization", "elbowroom.BatchNorm"),
    }
)
"""Ops whose results no backward of theirs reads."""


def _sum(left: Tensor, right: Tensor) -> Tensor:
    left += right
    return left


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "Relu": lambda x: functional.relu(x, inplace=True),
    "HardSwish": lambda x: functional.hardswish(x, inplace=True),
    "elbowroom.Silu": lambda x: functional.silu(x, inplace=True),
    "Mish": lambda x: functional.mish(x, inplace=True),
    "Add": _sum,
}


def in_place(
    nodes: Sequence[GraphNode], converted: Sequence[Converted], outputs: Sequence[str]
) -> list[Callable[..., Any]]:
    """Return the functions of the nodes, in place where that is free.

    Args:
        nodes: the nodes in order.
        converted: what each runs.
        outputs: values that are answers.
    """
    uses = Counter([*outputs, *(name for each in converted for name in each.takes)])
    fresh = {node.outputs[0] for node in nodes if node.op in FRESH}
    return [_in_place(node, each, fresh, uses) for node, each in zip(nodes, converted, strict=True)]


def _in_place(node: GraphNode, given: Converted, fresh: set[str], uses: Counter[str]) -> Callable[..., Any]:
    first = given.takes[0] if given.takes else ""
    if first not in fresh or uses[first] > 1:
        return given.run
    if node.op == "Clip" and given.run is functional.relu6:
        return lambda x: functional.relu6(x, inplace=True)
    if node.op == "LeakyRelu":
        return lambda x: functional.leaky_relu(x, node.attributes.get("alpha", 0.01), inplace=True)
    whole = node.op != "Add" or len(given.takes) == 2  # and not with a number
    return ACTIVATIONS.get(node.op, given.run) if whole else given.run
