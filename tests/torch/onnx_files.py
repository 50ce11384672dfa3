"""ONNX files for the tests: exports of PyTorch modules, and graphs made by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import elbowroom
from elbowroom.answers.estimate import Estimate
from elbowroom.frameworks.onnx import load
from elbowroom.frameworks.onnx.graph_training import GraphLosses, optimizer_of, train
from elbowroom.trace import Trace

GPU = "rtx4090"
TRAINING: Mapping[str, Any] = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
"""Options of an export that keeps batch norms and dropout."""


def exported(model: nn.Module, inputs: Sequence[Tensor], path: Path, **options: Any) -> str:
    """Export a module with the exporter that traces; return the file."""
    model.train("training" in options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and warns of shapes that it takes as constants
        torch.onnx.export(model, tuple(inputs), str(path), dynamo=False, **{"opset_version": 17, **options})
    return str(path)


def steps_of(
    make: Callable[[], nn.Module], losses: GraphLosses, inputs: Sequence[Tensor], optimizer: str
) -> Callable[[], Callable[[], None]]:
    def setup() -> Callable[[], None]:
        model = make().to("cuda").train()
        stepped, targets = optimizer_of(optimizer, model), losses.targets()
        return lambda: train(model, stepped, inputs, targets, losses, steps=1)

    return setup


def both(
    make: Callable[[], nn.Module], inputs: Sequence[Tensor], file: str, *, optimizer: str = "adamw", **options: Any
) -> tuple[Trace, Trace]:
    """Capture three steps of a module, and of its file, with the same loss and optimizer."""
    losses = GraphLosses(load(file, values=False, **options))
    return tuple(  # pyright: ignore[reportReturnType]
        elbowroom.capture(steps_of(each, losses, inputs, optimizer), machine=GPU)
        for each in (make, lambda: load(file, values=False, **options))
    )


def peaks(trace: Trace) -> tuple[Any, Any]:
    """Return the peak in allocated and in reserved bytes, with its low and high end."""
    answer: Estimate = elbowroom.estimate(trace, elbowroom.Machine.of(GPU))
    return answer.peak_allocated, answer.peak_reserved


def graph_file(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    listed: bool = False,
) -> str:
    """Write a graph that is made by hand; `listed` has its weights among the inputs, as old exporters do."""
    given = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    if listed:
        given += [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in stored]
    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "graph", given, made, stored)
    domains = {node.domain for node in nodes if node.domain}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))
    return str(path)
