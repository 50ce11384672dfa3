"""Graph view: a graph as patterns see it: who makes a value, how many use it, and what is known of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from elbowroom.frameworks.onnx.bound_graph import BoundGraph, producers
from elbowroom.frameworks.onnx.node_call import scalar
from elbowroom.frameworks.onnx.onnx_graph import GraphNode

Match = list[GraphNode]
"""The nodes that take the place of a pattern, the last one makes its result; empty if the pattern is not there."""
EXACT = 1e-4
"""Relative difference up to which a number of a file is a constant of a formula."""


class GraphView:
    """A graph as patterns see it: who makes a value, how many use it, and what is known of it."""

    def __init__(self, bound: BoundGraph) -> None:
        self.bound = bound
        self._made = dict(producers(bound.nodes))
        self._uses: dict[str, int] = dict.fromkeys(bound.graph.outputs, 1)
        for name in (name for node in bound.nodes for name in node.inputs):
            self._uses[name] = self._uses.get(name, 0) + 1

    def made(self, name: str, op: str, uses: int | None = 1) -> GraphNode | None:
        """Return the node that makes a value, if it is of this op and its result is used that often (None: ever)."""
        node = self._made.get(name)
        fits = node is not None and node.op == op and uses in (None, self._uses.get(name))
        return node if fits else None

    def number(self, name: str) -> float | None:
        """Return a known number."""
        return scalar(self.bound.values.get(name))

    def known(self, name: str) -> np.ndarray | None:
        """Return a known array."""
        found = self.bound.values.get(name)
        return found if isinstance(found, np.ndarray) else None

    def tensor(self, name: str) -> Tensor | None:
        """Return a value of the device."""
        found = self.bound.values.get(name)
        return found if isinstance(found, Tensor) else None

    def parameter(self, name: str, *shape: int) -> nn.Parameter | None:
        """Return a weight, if it has this shape; any, if none is given."""
        found = self.bound.values.get(name)
        if not isinstance(found, nn.Parameter) or (shape and tuple(found.shape) != shape):
            return None
        return found

    def either(self, node: GraphNode | None) -> Iterator[tuple[str, str]]:
        """Yield the two inputs of a node in both orders."""
        if node is not None and len(node.inputs) == 2:
            yield node.inputs[0], node.inputs[1]
            yield node.inputs[1], node.inputs[0]

    def with_number(self, node: GraphNode | None, number: float) -> str:
        """Return the other input of a node one of whose inputs is this number; "" if none is."""
        for one, other in self.either(node):
            found = self.number(one)
            if found is not None and math.isclose(found, number, rel_tol=EXACT):
                return other
        return ""

    def is_used(self, name: str) -> bool:
        """Return whether anybody uses a value."""
        return bool(name) and name in self._uses
