"""Bound graph: a graph with the shapes of its inputs, its shape arithmetic folded, its weights known from constants.

What is a weight: a stored array of floats with at least one dimension. It is a constant where it is the scale of a
Resize or the like, where it is a mask (a number beyond 1e30), and where it is one number without a module's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.errors import CaptureError
from elbowroom.frameworks.onnx import onnx_layers, onnx_recurrent
from elbowroom.frameworks.onnx.folding import NEVER, folded
from elbowroom.frameworks.onnx.module_paths import path_of_node
from elbowroom.frameworks.onnx.node_call import (
    SOURCES,
    NodeCall,
    Notes,
    Source,
    Value,
    derived,
    note_source,
    tensor_of,
    torch_dtype,
    weight_like,
)
from elbowroom.frameworks.onnx.onnx_graph import (
    GraphBody,
    GraphNode,
    OnnxGraph,
    Weight,
    bodies,
    fixed_batch,
    inferred_shapes,
    input_shapes,
)
from elbowroom.frameworks.onnx.onnx_ops import OPS, constant_of
from elbowroom.frameworks.onnx.stand_in import StandIn
from elbowroom.units import format_bytes

__all__ = ["BoundGraph", "Converted", "onnx_layers", "onnx_recurrent"]

CONSTANTS: Mapping[str, int] = dict.fromkeys(
    ("Resize", "Upsample", "Clip", "Pad", "Dropout", "Slice", "Expand", "Tile", "TopK", "OneHot", "CumSum", "Trilu"), 1
)
"""Ops whose inputs from this place on are constants."""
SMALL = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Where", "Equal", "Greater", "Less"})
"""Ops by which one number may be a constant."""
HUGE = 1e30
"""Numbers beyond it stand for minus infinity in masks."""
QUANTIZED = (
    "Quantize",
    "Dequantize",
    "DynamicQuantize",
    "QLinear",
    "ConvInteger",
    "MatMulInteger",
    "QAttention",
    "QGemm",
)
"""How the names of ops of quantized networks begin."""
SHAPE_OPS = ("Shape", "Size")
OF_WEIGHTS = frozenset({"Transpose", "Unsqueeze", "Squeeze", "Reshape", "Concat", "Slice", "Split", "Cast"})
"""Ops that exporters apply to weights alone, as to order the gates of an LSTM."""


class Converted(NamedTuple):
    """A node as a function of tensors.

    Attributes:
        run: the function, or a module.
        takes: names of the values that it gets.
    """

    run: Callable[..., Any]
    takes: tuple[str, ...]


@final
class BoundGraph:
    """A graph with all shapes known.

    Args:
        graph: the graph.
        batch: samples of a batch; None for what the graph fixes.
        sizes: sizes of its other free dimensions by name.
        frozen: patterns of names of weights that are not trained.
        notes: called with the kind and the text of what the answer has to say.

    Raises:
        UsageError: a free dimension has no size.
        CaptureError: a node is of an op, or of a form of one, that is not converted.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        *,
        batch: int | None,
        sizes: Mapping[str, int] | None,
        frozen: Sequence[str],
        notes: Notes,
    ) -> None:
        self.graph = graph
        self.shapes = input_shapes(graph, batch, sizes)
        self.frozen = tuple(frozen)
        fixed = fixed_batch(graph)
        self.batch = (1, 1) if fixed is None else (fixed, batch or fixed)
        self._of_shapes: set[str] = set()
        self.values: dict[str, Value] = {}
        self._notes = notes
        self._inferred: dict[str, tuple[int, ...]] | None = None
        self._users = _users(graph)
        for name, weight in graph.weights.items():
            self.values[name] = self._stored(name, weight, self._users.get(name, []))
        for each in graph.inputs:
            self.values[each.name] = torch.empty(self.shapes[each.name], dtype=torch_dtype(each.dtype), device="meta")
        self.nodes = [node for node in self._with_own_weights() if not self._folds(node)]

    def converted(self, node: GraphNode) -> Converted:
        """Return a node as a function, and note what its outputs are.

        Raises:
            CaptureError: its op, or this form of it, is not converted.
        """
        call = self._call(node)
        run = OPS[node.op](call) if node.op in OPS else self._stand_in(node, call)
        takes = tuple(node.inputs[place] for place in call.taken)
        self._note_outputs(node, run, call)
        return Converted(run, takes)

    def _call(self, node: GraphNode) -> NodeCall:
        return NodeCall(
            op=node.op,
            opset=self.graph.opset,
            path=path_of_node(node.name),
            attributes=node.attributes,
            names=node.inputs,
            values=[self.values[name] if name else None for name in node.inputs],
            outputs=max((at + 1 for at, name in enumerate(node.outputs) if self._is_used(name)), default=1),
            batch=(1, 1) if self._of_shapes.intersection(node.inputs) else self.batch,
        )

    def tensor(self, name: str) -> Tensor:
        """Return a value as a tensor without bytes."""
        found = self.values[name]
        return found if isinstance(found, Tensor) else tensor_of(np.asarray(found)).to("meta")

    def weight(self, name: str, like: str, shape: Sequence[int], numbers: Callable[[Tensor], Tensor]) -> str:
        """Add a weight that is another form of a stored one; return its name."""
        parameter = self.values[like]
        assert isinstance(parameter, nn.Parameter)
        if name not in self.values:
            self.values[name] = derived(parameter, shape, numbers)
        return name

    def _stored(self, name: str, weight: Weight, used: Sequence[tuple[GraphNode, int]]) -> Value:
        if is_constant(name, weight, used):
            return weight.values
        like = torch.empty((), dtype=torch_dtype(weight.dtype), device="meta")
        trains = not any(fnmatchcase(name, pattern) for pattern in self.frozen)
        return weight_like(like, weight.shape, Source((name,), lambda array: array, trains))

    def _with_own_weights(self) -> Iterator[GraphNode]:
        """Yield the nodes, each with fresh weights of its own.

        torch.onnx (dynamo) stores arrays of equal numbers once. Norms and biases of a network that was not trained
        have equal ones.
        """
        seen: set[str] = set()
        for node in self._opened(self.graph.nodes):
            inputs = list(node.inputs)
            for at, name in enumerate(inputs):
                weight = self.values.get(name)
                if isinstance(weight, nn.Parameter) and name in seen and _is_fresh(self.graph.weights[name]):
                    inputs[at] = f"{name}#{len(self.values)}"
                    self.values[inputs[at]] = weight_like(weight, weight.shape, SOURCES[weight])
                seen.add(name)
            yield node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs))

    def _opened(self, nodes: Sequence[GraphNode]) -> Iterator[GraphNode]:
        """Yield nodes one after the other, and in place of an If whose condition is known by then its branch."""
        for node in nodes:
            condition = self.values.get(node.inputs[0]) if node.op == "If" else None
            if not isinstance(condition, np.ndarray):
                yield node
                continue
            branch: GraphBody = node.attributes["then_branch" if condition.reshape(-1)[0] else "else_branch"]
            self.graph = replace(self.graph, weights={**self.graph.weights, **branch.weights})
            for name, weight in branch.weights.items():
                self.values[name] = self._stored(name, weight, self._users.get(name, []))
            yield from self._opened(branch.nodes)
            for inner, outer in zip(branch.outputs, node.outputs, strict=True):
                yield GraphNode(op="Identity", name=node.name, inputs=(inner,), outputs=(outer,), attributes={})

    def _is_used(self, name: str) -> bool:
        return bool(name) and (name in self._users or name in self.graph.outputs)

    def _copied(self, node: GraphNode, given: nn.Parameter) -> nn.Parameter:
        """Return the weight that an Identity makes of another one.

        torch.onnx stores weights of equal numbers once, as those of fresh norms are. Weights that are one in the
        original are embeddings, which a Gather reads.
        """
        source, target = node.inputs[0], node.outputs[0]
        readers = [(user.op, at) for name in (source, target) for user, at in self._users.get(name, ())]
        if ("Gather", 0) in readers:
            return given
        trains = not any(fnmatchcase(target, pattern) for pattern in self.frozen)
        return weight_like(given, given.shape, SOURCES[given]._replace(trains=trains))

    def _folds(self, node: GraphNode) -> bool:
        """Return whether a node is computed now, else note what its outputs are."""
        values = [self.values[name] if name else None for name in node.inputs]
        first = values[0] if values else None
        if node.op == "Constant":
            self.values[node.outputs[0]] = constant_of(node.attributes)
        elif node.op in SHAPE_OPS and isinstance(first, Tensor):
            self.values[node.outputs[0]] = _shape(node, first)
            self._of_shapes.update(node.outputs)
        elif node.op == "Identity" and isinstance(first, nn.Parameter):
            self.values[node.outputs[0]] = self._copied(node, first)
        elif not any(isinstance(value, Tensor) for value in values) and node.op in OPS and node.op not in NEVER:
            outputs = self._folded(node, [None if isinstance(value, Tensor) else value for value in values])
            self.values |= dict(zip((name for name in node.outputs if name), outputs, strict=True))
            if self._of_shapes.intersection(node.inputs):
                self._of_shapes.update(node.outputs)
        else:
            self.converted(node)
            return False
        return True

    def _folded(self, node: GraphNode, values: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Compute a node by ONNX's reference, and by the converter of its op where the reference fails."""
        try:
            return folded(node, values, self.graph.opset)
        except Exception:  # noqa: BLE001  its errors are of all kinds, such as that of GatherElements on broadcast data
            call = self._call(node)
            found = OPS[node.op](call)(*(tensor_of(np.asarray(values[place])) for place in call.taken))
            outputs = found if isinstance(found, tuple | list) else (found,)
            return [each.numpy() for each in outputs]

    def _note_outputs(self, node: GraphNode, run: Callable[..., Any], call: NodeCall) -> None:
        tensors = [call.tensor(place) for place in call.taken]
        try:
            with torch.no_grad():
                found = run(*tensors)
        except CaptureError:
            raise
        except Exception as problem:  # whatever torch says of shapes that do not fit
            shapes = ", ".join(str(list(each.shape)) for each in tensors)
            said = " ".join(str(problem).split())
            what = f"{node.op} ({node.name or node.outputs[0]}) with {shapes}, which does not fit"
            raise CaptureError(
                f"{self.graph.path}: given {what} ({said[:300]}); allowed are sizes that the graph was exported for; "
                "leave out --batch, or export it with a free batch dimension"
            ) from problem
        outputs = found if isinstance(found, tuple | list) else (found,)
        self.values |= {name: value for name, value in zip(node.outputs, outputs, strict=False) if name}
        of = [call.values[place] for place in call.taken]
        if node.op in OF_WEIGHTS and all(not isinstance(each, Tensor) or each in SOURCES for each in of):
            for at, made in enumerate(outputs):
                note_source(made, of, lambda *given, at=at: _item(run(*given), at))

    def _stand_in(self, node: GraphNode, call: NodeCall) -> StandIn:
        """Return a layer that holds what an unknown op holds at least: its inputs and its results.

        Raises:
            CaptureError: the shape of a result is not known, or weights that would train are in graphs inside, or are
                whole numbers.
        """
        call.take(*(place for place, value in enumerate(call.values) if isinstance(value, Tensor)))
        if node.op.rpartition(".")[2].startswith(QUANTIZED):
            raise CaptureError(self._unknown())
        if self._inferred is None:
            self._inferred = inferred_shapes(self.graph, self.shapes)
        shapes = [self._inferred.get(name) for name in node.outputs]
        known = [shape for shape in shapes if shape is not None]
        if not call.taken or len(known) < len(shapes) or any(bodies(node)):
            raise CaptureError(self._unknown())
        dtype = call.tensor(call.taken[0]).dtype
        size_bytes = sum(int(np.prod(shape)) for shape in known) * dtype.itemsize
        self._notes("unsupported", f"ONNX op {node.op}, whose results hold at least {format_bytes(size_bytes)}")
        return StandIn(known, dtype)

    def _unknown(self) -> str:
        counts: dict[str, int] = {}
        for node in self.graph.nodes:
            if node.op not in OPS and node.op not in (*SHAPE_OPS, "Constant"):
                counts[node.op] = counts.get(node.op, 0) + 1
        ops = ", ".join(f"{name} ({count})" for name, count in counts.items())
        inside = [body for node in self.graph.nodes for body in bodies(node)]
        if inside:
            ops += _said_of(inside)
        if any(name.rpartition(".")[2].startswith(QUANTIZED) for name in counts):
            return (
                f"{self.graph.path}: given a quantized network: {ops}; allowed are weights of floats, as whole numbers "
                "do not train; give the network as it was before it was quantized"
            )
        return (
            f"{self.graph.path}: given ops that are not converted, and whose results or weights are not known: {ops}; "
            "allowed are the ops of docs/onnx.md, and others where the file has the shapes of their results; export it "
            "with these shapes (value_info), or without ops of a single runtime"
        )


def _said_of(inside: Sequence[GraphBody]) -> str:
    """Say what the branches and bodies of control flow hold at least."""
    stored = [weight for body in inside for weight in body.weights.values() if "float" in weight.dtype]
    size_bytes = sum(int(np.prod(weight.shape)) * torch_dtype(weight.dtype).itemsize for weight in stored)
    nodes = [node for body in inside for node in body.nodes]
    held = (node.attributes.get("value") for node in nodes if node.op == "Constant")
    size_bytes += sum(array.nbytes for array in held if isinstance(array, np.ndarray) and array.dtype.kind == "f")
    return (
        f" (what runs inside of If, Loop and Scan follows from values: {len(nodes)} ops, with arrays of "
        f"{format_bytes(size_bytes)})"
    )


def _is_fresh(weight: Weight) -> bool:
    """Return whether an array is one of a norm or a bias that was not trained: [C] with equal numbers."""
    values = weight.values
    return values is not None and values.ndim == 1 and values.size > 1 and bool((values == values[0]).all())


def _item(found: Any, at: int) -> Tensor:
    return found[at] if isinstance(found, tuple | list) else found


def _users(graph: OnnxGraph) -> dict[str, list[tuple[GraphNode, int]]]:
    """Return the nodes that take each value, with the place at which; those inside of nodes too."""
    users: dict[str, list[tuple[GraphNode, int]]] = {}
    inside = [each for node in graph.nodes for body in bodies(node) for each in body.nodes]
    for node in (*graph.nodes, *inside):
        for place, name in enumerate(node.inputs):
            users.setdefault(name, []).append((node, place))
    for name in (name for node in (*graph.nodes, *inside) for body in bodies(node) for name in body.outputs):
        users.setdefault(name, [])
    return users


def is_constant(name: str, weight: Weight, used: Sequence[tuple[GraphNode, int]]) -> bool:
    """Return whether a stored array is a constant, and no weight."""
    if weight.values is None:
        return False
    if "float" not in weight.dtype or not weight.shape:
        return True
    if used and all(place >= CONSTANTS.get(node.op, 99) for node, place in used):
        return True
    by_numbers = bool(used) and all(node.op in SMALL for node, _ in used)
    if by_numbers and weight.values.size == 1 and ("." not in name or "::" in name):
        return True
    return by_numbers and bool(weight.values.size) and float(np.abs(weight.values).max()) > HUGE


def _shape(node: GraphNode, tensor: Tensor) -> np.ndarray:
    if node.op == "Size":
        return np.asarray(tensor.numel(), dtype=np.int64)
    shape = np.asarray(tensor.shape, dtype=np.int64)
    return shape[node.attributes.get("start", 0) : node.attributes.get("end", len(shape))]


def renamed(node: GraphNode, op: str, inputs: Sequence[str], **attributes: Any) -> GraphNode:
    """Return a node that makes the same result by another op."""
    return replace(node, op=op, inputs=tuple(inputs), attributes=attributes, outputs=node.outputs[:1], proto=None)


def producers(nodes: Sequence[GraphNode]) -> Iterator[tuple[str, GraphNode]]:
    """Yield each value with the node that makes it."""
    for node in nodes:
        yield from ((name, node) for name in node.outputs if name)
