"""ONNX graph: a file's nodes, weights and inputs, with the sizes of free dimensions filled in.

Only this file and host_values_of.py use the library onnx, which the extra of the same name brings.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from elbowroom.errors import UsageError

ONNX_DOMAINS = ("", "ai.onnx")
"""Names of the domain of ONNX's own ops."""
VALUES_BYTES = 1 << 16
"""Weights beyond this are not read where only their shapes are wanted."""
INSTALL = (
    "allowed is an ONNX graph where the library onnx is installed; run `pip install 'elbowroom[onnx]'`, which brings it"
)

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        op: name of its op; with the domain before it if that is not ONNX's own.
        name: its name, "" if it has none.
        inputs: names of the values that it takes, "" for one that is left out.
        outputs: names of the values that it makes, "" for one that nobody uses.
        attributes: numbers, texts, lists, arrays and bodies by name.
        proto: the node as the library reads it.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    proto: Any = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One stored array.

    Attributes:
        shape: its shape.
        dtype: its dtype, in NumPy's spelling.
        values: its numbers; None if they were not read.
    """

    shape: tuple[int, ...]
    dtype: str
    values: np.ndarray | None = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBody:
    """A graph inside a node: a branch of an If, or what a Loop or a Scan repeats.

    Attributes:
        nodes: its nodes in order; they also take values from around the node.
        weights: arrays stored in it.
        outputs: names of what it answers.
    """

    nodes: tuple[GraphNode, ...]
    weights: Mapping[str, Weight]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """One input: a dimension is a number, or the name under which it is free."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """What is in a file.

    Attributes:
        path: the file.
        opset: version of ONNX's own ops.
        producer: the exporter, such as "pytorch 2.13.0"; "" if it is not named.
        nodes: the nodes in order.
        weights: stored arrays by name, in the order of the file.
        inputs: what a step is given.
        outputs: names of what it answers.
        shapes: shapes that the file gives for values in between, free dimensions by their names.
    """

    path: str
    opset: int
    producer: str
    nodes: tuple[GraphNode, ...]
    weights: Mapping[str, Weight]
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | str, ...]]


def bodies(node: GraphNode) -> Iterator[GraphBody]:
    """Yield the graphs inside a node, and those inside them."""
    for body in node.attributes.values():
        if isinstance(body, GraphBody):
            yield body
            for each in body.nodes:
                yield from bodies(each)


def library() -> Any:
    """Return the library onnx.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as problem:
        raise UsageError(
            f"given an ONNX graph, and the library that reads it is missing ({problem}); {INSTALL}"
        ) from None
    return onnx


def read_graph(path: str | os.PathLike[str], *, values: bool = True) -> OnnxGraph:
    """Read a file.

    Args:
        path: an ONNX file; weights in files next to it are found there.
        values: whether the numbers of large weights are wanted; without them those of external files may be missing.

    Raises:
        UsageError: the library is missing, or this is no ONNX file.
    """
    onnx, path = library(), os.fspath(path)
    try:
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node:
            raise ValueError("it has no nodes")
        model = _inlined(onnx, model)
    except Exception as problem:  # noqa: BLE001  protobuf raises errors of its own, which differ from version to version
        said = " ".join(str(problem).split()) or type(problem).__name__
        raise UsageError(
            f"{path}: given a file that cannot be read as an ONNX graph ({said}); allowed is what an exporter wrote, "
            "such as torch.onnx.export or tf2onnx; export it again"
        ) from None
    graph = model.graph
    body = _body(onnx, graph, lambda tensor: _weight(onnx, tensor, Path(path).parent, values))
    weights = body.weights
    inputs = tuple(_input(onnx, each) for each in graph.input if each.name not in weights)
    given = (*graph.value_info, *graph.output)
    return OnnxGraph(
        path=path,
        opset=next((each.version for each in model.opset_import if each.domain in ONNX_DOMAINS), 1),
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        nodes=body.nodes,
        weights=weights,
        inputs=inputs,
        outputs=body.outputs,
        shapes={each.name: _dims(each) for each in given if each.type.tensor_type.HasField("shape")},
    )


def _inlined(onnx: Any, model: Any) -> Any:
    """Put the bodies of a model's own functions in the place of their calls."""
    if not model.functions:
        return model
    import onnx.inliner

    return onnx.inliner.inline_local_functions(model)


def _body(onnx: Any, graph: Any, weight: Callable[[Any], Weight]) -> GraphBody:
    return GraphBody(
        nodes=tuple(_node(onnx, each, weight) for each in graph.node),
        weights={each.name: weight(each) for each in graph.initializer},
        outputs=tuple(each.name for each in graph.output),
    )


def _node(onnx: Any, node: Any, weight: Callable[[Any], Weight]) -> GraphNode:
    own = node.domain in ONNX_DOMAINS
    return GraphNode(
        op=node.op_type if own else f"{node.domain}.{node.op_type}",
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={each.name: _attribute(onnx, each, weight) for each in node.attribute},
        proto=node,
    )


def _attribute(onnx: Any, attribute: Any, weight: Callable[[Any], Weight]) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.GRAPH:
        return _body(onnx, value, weight)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.TENSOR:
        return onnx.numpy_helper.to_array(value)
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [each.decode("utf-8", "replace") for each in value]
    if attribute.type == onnx.AttributeProto.FLOAT:
        return shortest(value)
    return list(value) if isinstance(value, Sequence) else value


def shortest(value: float) -> float:
    """Return the number with the fewest digits that float32 rounds to this one, such as 1e-5 for 9.99999975e-06."""
    return float(str(np.float32(value)))


def dtype_of(onnx: Any, number: int) -> str:
    """Return the dtype, in NumPy's spelling, of a number of ONNX's enumeration."""
    if number == onnx.TensorProto.BFLOAT16:
        return "bfloat16"
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name


def _weight(onnx: Any, tensor: Any, folder: Path, values: bool) -> Weight:
    shape, dtype = tuple(tensor.dims), dtype_of(onnx, tensor.data_type)
    elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    size_bytes = int(np.prod(shape, dtype=np.int64)) * 8
    if "float" in dtype and not values and size_bytes > VALUES_BYTES:
        return Weight(shape=shape, dtype=dtype, values=None)
    if elsewhere:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    return Weight(shape=shape, dtype=dtype, values=onnx.numpy_helper.to_array(tensor))


def _input(onnx: Any, value: Any) -> GraphInput:
    return GraphInput(name=value.name, dtype=dtype_of(onnx, value.type.tensor_type.elem_type), dims=_dims(value))


def _dims(value: Any) -> tuple[int | str, ...]:
    """Return the dimensions of a value; one that has neither a size nor a name is named by its place, as in x:1."""
    dims = enumerate(value.type.tensor_type.shape.dim)
    return tuple(
        dim.dim_param or f"{value.name}:{at}"
        if dim.WhichOneof("value") != "dim_value" or dim.dim_value <= 0
        else dim.dim_value
        for at, dim in dims
    )


def input_shapes(
    graph: OnnxGraph, batch: int | None = None, sizes: Mapping[str, int] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input.

    The first dimension of an input is its batch if it is free, or fixed to the number that the first input begins
    with. Other free dimensions get their sizes by name, or by input and place, as in "x:1".

    Args:
        graph: the graph.
        batch: samples of a batch; None for those that the graph fixes, and 1 if it fixes none.
        sizes: sizes of dimensions by name.

    Raises:
        UsageError: a free dimension has no size, or a size names no dimension.
    """
    sizes = dict(sizes or {})
    known = {name for each in graph.inputs for name in _names_of(each)}
    if unknown := sorted(set(sizes) - known):
        raise UsageError(
            f"--dim: given {unknown[0]}, which names no dimension of {graph.path}; allowed are "
            f"{', '.join(sorted(known)) or 'none: it has no inputs'}; take one of these"
        )
    leading = next((each.dims[0] for each in graph.inputs if each.dims), 1)
    shapes = {each.name: tuple(_sizes(each, leading, batch, sizes)) for each in graph.inputs}
    free = {dim: None for shape in shapes.values() for dim in shape if isinstance(dim, str)}
    if free:
        words = " ".join(f"--dim {shlex.quote(f'{name}=SIZE')}" for name in free)
        raise UsageError(
            f"{graph.path}: given no size for {', '.join(free)}; allowed is a size for each free dimension of its "
            f"inputs ({_said(graph)}); add {words}"
        )
    return {name: tuple(int(dim) for dim in shape) for name, shape in shapes.items()}


def fixed_batch(graph: OnnxGraph) -> int | None:
    """Return the batch that a graph fixes; None if that is free."""
    leading = next((each.dims[0] for each in graph.inputs if each.dims), None)
    return leading if isinstance(leading, int) else None


def _names_of(given: GraphInput) -> Iterator[str]:
    for at, dim in enumerate(given.dims):
        yield f"{given.name}:{at}"
        if isinstance(dim, str):
            yield dim


def _sizes(given: GraphInput, leading: int | str, batch: int | None, sizes: Mapping[str, int]) -> Iterator[int | str]:
    for at, dim in enumerate(given.dims):
        own = sizes.get(f"{given.name}:{at}", sizes.get(str(dim)))
        if own is not None:
            yield own
        elif at == 0 and (isinstance(dim, str) or dim == leading):
            yield batch or (1 if isinstance(dim, str) else dim)
        elif isinstance(dim, str) and dim == leading:
            yield batch or 1
        else:
            yield dim


def _said(graph: OnnxGraph) -> str:
    return ", ".join(f"{each.name} [{', '.join(map(str, each.dims))}]" for each in graph.inputs)


def inferred_shapes(graph: OnnxGraph, inputs: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of values in between that the file has, or that follow from its inputs.

    Args:
        graph: the graph.
        inputs: shape of each input.
    """
    onnx = library()
    sizes = {
        dim: size
        for each in graph.inputs
        for dim, size in zip(each.dims, inputs[each.name], strict=True)
        if isinstance(dim, str)
    }
    model = onnx.load(graph.path, load_external_data=False)
    for each in model.graph.input:
        for dim, size in zip(each.type.tensor_type.shape.dim, inputs.get(each.name, ()), strict=False):
            dim.dim_value = size
    found = dict(graph.shapes)
    with suppress(Exception):  # without it there are the shapes of the file
        found |= {each.name: _dims(each) for each in onnx.shape_inference.infer_shapes(model).graph.value_info}
    known = {name: tuple(sizes.get(str(dim), dim) for dim in dims) for name, dims in found.items()}
    return {
        name: tuple(int(dim) for dim in dims)
        for name, dims in known.items()
        if all(isinstance(dim, int) for dim in dims)
    }
