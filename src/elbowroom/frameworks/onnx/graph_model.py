"""Graph model: a graph as a module of PyTorch that trains: layers with weights are PyTorch's own modules.

Values are let go after their last use, as the variables of a `forward` are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from elbowroom.errors import UsageError
from elbowroom.frameworks.onnx.bound_graph import BoundGraph, Converted
from elbowroom.frameworks.onnx.constant_weights import with_constant_weights
from elbowroom.frameworks.onnx.folded_norms import with_norms
from elbowroom.frameworks.onnx.graph_patterns import matched
from elbowroom.frameworks.onnx.in_place import in_place
from elbowroom.frameworks.onnx.module_paths import path_of_node, path_of_weight, put, put_parameter
from elbowroom.frameworks.onnx.node_call import SOURCES, Notes, Source, tensor_of
from elbowroom.frameworks.onnx.onnx_graph import GraphNode, OnnxGraph, Weight, read_graph

__all__ = ["GraphModel", "load"]


class GraphStep(NamedTuple):
    """One call of a forward.

    Attributes:
        run: what is called.
        takes: names of the values that it gets.
        makes: names of its results.
        ends: values that nobody uses after it.
    """

    run: Callable[..., Any]
    takes: tuple[str, ...]
    makes: tuple[str, ...]
    ends: tuple[str, ...]


@final
class GraphModel(nn.Module):
    """A graph that trains; made by `load`.

    Args:
        bound: the graph with its shapes.
        nodes: its nodes, as they are run.
        outputs: names of the values that `forward` returns.
        inplace: whether activations and sums overwrite what is free to be.
        values: whether weights get the numbers of the file.

    Attributes:
        graph: the graph that was read.
        input_shapes: shape of each input by name.
        output_names: names of what `forward` returns.
        output_values: these, as tensors without bytes.
        output_ops: the op that makes each.
    """

    def __init__(
        self, bound: BoundGraph, nodes: Sequence[GraphNode], *, outputs: Sequence[str], inplace: bool, values: bool
    ) -> None:
        super().__init__()
        self.graph = bound.graph
        self.input_shapes = dict(bound.shapes)
        self.output_names = tuple(outputs)
        nodes, converted = _used([(node, bound.converted(node)) for node in nodes], outputs)
        self.output_values = {name: bound.tensor(name) for name in outputs}
        self.output_ops = {name: node.op for node in nodes for name in node.outputs if name in outputs}
        runs = in_place(nodes, converted, outputs) if inplace else [each.run for each in converted]
        self._constants: dict[str, Tensor] = {}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self._steps = self._scheduled(
            bound, nodes, [each._replace(run=run) for each, run in zip(converted, runs, strict=True)]
        )
        _fill(self, bound.graph.weights, values)

    def forward(self, *inputs: Tensor) -> Any:
        """Run the graph on its inputs, in the order of the file; return its output, or a tuple of them."""
        values: dict[str, Tensor] = dict(zip(self.input_shapes, inputs, strict=True))
        del inputs
        for step in self._steps:
            made = step.run(*[self._value(values, name) for name in step.takes])
            if isinstance(made, Tensor):
                values[step.makes[0]] = made
            else:
                values.update(zip(step.makes, made, strict=False))
            del made
            for name in step.ends:
                values.pop(name, None)
        found = tuple(values[name] for name in self.output_names)
        return found[0] if len(found) == 1 else found

    def _value(self, values: Mapping[str, Tensor], name: str) -> Tensor:
        found = values.get(name)
        if found is not None:
            return found
        if name in self._owners:
            owner, leaf = self._owners[name]
            return getattr(owner, leaf)
        return self._constants[name].to(self._device(values))

    def _device(self, values: Mapping[str, Tensor]) -> torch.device:
        first = next(iter(values.values()), None)
        return next(self.parameters()).device if first is None else first.device

    def _scheduled(
        self, bound: BoundGraph, nodes: Sequence[GraphNode], converted: Sequence[Converted]
    ) -> list[GraphStep]:
        last: dict[str, int] = {}
        for number, each in enumerate(converted):
            last |= dict.fromkeys(each.takes, number)
        steps: list[GraphStep] = []
        for number, (node, each) in enumerate(zip(nodes, converted, strict=True)):
            if isinstance(each.run, nn.Module):
                put(self, _path(node), each.run)
            self._keep(bound, each.takes)
            unused = [name for name in node.outputs if name and name not in last]
            ends = [name for name in dict.fromkeys(each.takes) if last[name] == number]
            ends = tuple(name for name in (*ends, *unused) if name not in self.output_names)
            steps.append(GraphStep(each.run, each.takes, node.outputs, ends))
        return steps

    def _keep(self, bound: BoundGraph, names: Sequence[str]) -> None:
        """Register the weights, and keep the constants, that a step takes by name."""
        for name in names:
            value = bound.values[name]
            if name in self._owners or name in self._constants:
                continue
            if isinstance(value, nn.Parameter):
                self._owners[name] = put_parameter(self, name, value)
            elif isinstance(value, np.ndarray):
                self._constants[name] = tensor_of(value)
                if name in bound.graph.weights:
                    leaf = f"constant_{len(self._owners)}"
                    self.register_buffer(leaf, self._constants[name], persistent=False)
                    self._owners[name] = self, leaf


def _used(
    given: Sequence[tuple[GraphNode, Converted]], outputs: Sequence[str]
) -> tuple[list[GraphNode], list[Converted]]:
    """Return the nodes whose results others take: layers have what was made of their weights alone."""
    needed, found = set(outputs), list[tuple[GraphNode, Converted]]()
    for node, converted in reversed(given):
        if needed.intersection(node.outputs):
            needed.update(converted.takes)
            found.append((node, converted))
    return [node for node, _ in found[::-1]], [converted for _, converted in found[::-1]]


def _path(node: GraphNode) -> str:
    named = [path_of_weight(name.removesuffix("^T")) for name in node.inputs[1:]]
    return next(filter(None, named), "") or path_of_node(node.name) or node.op.rpartition(".")[2].lower()


def _fill(model: nn.Module, weights: Mapping[str, Weight], values: bool) -> None:
    """Give weights and buffers their bytes; those that are used in several places stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
            if parameter.is_meta:
                if id(parameter) not in made:
                    made[id(parameter)] = _filled(parameter, weights, values)
                setattr(module, name, made[id(parameter)])
        for name, buffer in [*module.named_buffers(recurse=False)]:
            if buffer.is_meta:
                setattr(module, name, _numbers(buffer, SOURCES.get(buffer), weights, values))


def _filled(parameter: nn.Parameter, weights: Mapping[str, Weight], values: bool) -> nn.Parameter:
    numbers = _numbers(parameter, SOURCES.get(parameter), weights, values)
    return nn.Parameter(numbers, requires_grad=parameter.requires_grad)


def _numbers(like: Tensor, source: Source | None, weights: Mapping[str, Weight], values: bool) -> Tensor:
    arrays = [weights[name].values for name in source.names] if source is not None and values else []
    if source is None or not arrays or any(array is None for array in arrays):
        fresh = torch.ones if like.dim() == 1 and like.is_floating_point() else torch.zeros
        return fresh(like.shape, dtype=like.dtype)
    found = source.numbers(*(tensor_of(array) for array in arrays if array is not None))
    return found.to(like.dtype).contiguous().clone()


def load(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    frozen: Sequence[str] = (),
    outputs: Sequence[str] = (),
    inplace: bool = False,
    norms: bool = True,
    logits: bool = False,
    values: bool = True,
    notes: Notes = lambda _kind, _text: None,
) -> GraphModel:
    """Read an ONNX graph as a module that trains.

    Args:
        path: the file.
        batch: samples of a batch; None for the number that the graph fixes, or 1.
        sizes: sizes of other free dimensions of its inputs, by name or as "input:axis".
        frozen: patterns of names of weights that are not trained, such as "encoder.*".
        outputs: outputs that `forward` returns; the first one if none is named.
        inplace: whether activations and sums overwrite what is free to be, as torchvision's networks have it.
        norms: whether batch norms that the exporter folded into convolutions are put back.
        logits: whether an output that is a Softmax is taken before it, as `functional.cross_entropy` wants it.
        values: whether weights get the numbers of the file; without them, ones and zeros.
        notes: called with the kind (a remark's) and the text of what the graph leaves open.

    Raises:
        UsageError: the library onnx is missing, this is no ONNX file, or a free dimension has no size.
        CaptureError: a node cannot be converted.
    """
    graph = with_constant_weights(read_graph(path, values=values), values=values, notes=notes)
    bound = BoundGraph(graph, batch=batch, sizes=sizes, frozen=frozen, notes=notes)
    wanted, nodes = _wanted(graph, outputs), matched(bound)
    wanted = _before_softmax(nodes, wanted, notes) if logits else wanted
    nodes = _needed(nodes, wanted)
    nodes = with_norms(nodes, notes) if norms else nodes
    return GraphModel(bound, nodes, outputs=wanted, inplace=inplace, values=values)


def _wanted(graph: OnnxGraph, outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs that were named, or the first one.

    Raises:
        UsageError: there is no such output.
    """
    if missing := [name for name in outputs if name not in graph.outputs]:
        raise UsageError(
            f"--output: given {missing[0]}, which {graph.path} does not have; allowed are {', '.join(graph.outputs)}; "
            "take one of these"
        )
    return tuple(outputs) or graph.outputs[:1]


def _before_softmax(nodes: Sequence[GraphNode], outputs: Sequence[str], notes: Notes) -> tuple[str, ...]:
    given = {node.outputs[0]: node.inputs[0] for node in nodes if node.op == "Softmax" and node.outputs[0] in outputs}
    for name in given:
        notes("exported", f"the loss takes what is before the Softmax of {name}, as cross_entropy has its own")
    return tuple(given.get(name, name) for name in outputs)


def _needed(nodes: Sequence[GraphNode], outputs: Sequence[str]) -> list[GraphNode]:
    """Return the nodes that make some outputs."""
    needed, found = set(outputs), list[GraphNode]()
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            found.append(node)
    return found[::-1]
