"""ONNX graphs of other exporters and old opsets compute what ONNX's reference does, and train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from elbowroom.errors import CaptureError, UsageError
from elbowroom.frameworks.onnx import GraphModel, load
from elbowroom.frameworks.onnx.graph_training import GraphLosses, batch_of, optimizer_of, train
from tests.torch.onnx_files import TRAINING, exported, graph_file

Nodes = Sequence[onnx.NodeProto]
Weights = Mapping[str, np.ndarray]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def differs(model: GraphModel, file: str) -> float:
    """Return the largest difference from the reference, of outputs in evaluation."""
    inputs = [numbers(*shape, seed=number) for number, shape in enumerate(model.input_shapes.values())]
    feeds = dict(zip(model.input_shapes, inputs, strict=True))
    (wanted,) = ReferenceEvaluator(file).run(list(model.output_names), feeds)
    with torch.no_grad():
        found = model.eval()(*map(torch.from_numpy, inputs))
    assert tuple(found.shape) == np.asarray(wanted).shape
    return float(np.abs(np.asarray(wanted) - found.numpy()).max())


def tensorflow() -> tuple[Nodes, dict[str, Sequence[int | str]], Weights]:
    """As tf2onnx writes Keras: NHWC between Transposes, SAME padding, a bias apart, MatMul and Add, Softmax last."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["nchw"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["nchw", "kernel:0"], ["c"], strides=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("Add", ["c", "bias_reshaped:0"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("Transpose", ["p"], ["nhwc"], perm=[0, 2, 3, 1]),
        helper.make_node("Shape", ["nhwc"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["nhwc", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "dense/kernel:0"], ["m"]),
        helper.make_node("Add", ["m", "dense/bias:0"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"], axis=-1),
    ]
    weights = {
        "kernel:0": numbers(4, 3, 3, 3),
        "bias_reshaped:0": numbers(1, 4, 1, 1),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "rest": np.array([-1], np.int64),
        "dense/kernel:0": numbers(16, 5),
        "dense/bias:0": numbers(5),
    }
    return nodes, {"x": ("batch", 8, 8, 3)}, weights


def mxnet() -> tuple[Nodes, dict[str, Sequence[int | str]], Weights]:
    """As MXNet and the model zoo's first nets are written, opset 7: weights among the inputs, spatial, Gemm."""
    nodes = [
        helper.make_node("Conv", ["data", "conv0_weight", "conv0_bias"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], spatial=1, epsilon=2e-5),
        helper.make_node("LeakyRelu", ["n"], ["a"], alpha=0.1),
        helper.make_node("LRN", ["a"], ["l"], size=3),
        helper.make_node("GlobalAveragePool", ["l"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Dropout", ["f"], ["dropped", "mask"], ratio=0.5),
        helper.make_node("Gemm", ["dropped", "fc_weight", "fc_bias"], ["y"], transB=1),
    ]
    weights = {
        "conv0_weight": numbers(4, 3, 3, 3),
        "conv0_bias": numbers(4),
        **{name: np.abs(numbers(4, seed=seed)) + 0.5 for seed, name in enumerate("gbmv")},
        "fc_weight": numbers(6, 4),
        "fc_bias": numbers(6),
    }
    return nodes, {"data": (1, 3, 6, 6)}, weights


def caffe() -> tuple[Nodes, dict[str, Sequence[int | str]], Weights]:
    """As Caffe2 writes, opset 9: groups, a shuffle of channels with a fixed batch, Clip and Upsample by attributes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=2, kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["c", "five"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "four"], ["s"]),
        helper.make_node("Clip", ["s"], ["k"], min=0.0, max=6.0),
        helper.make_node("Sum", ["k", "s"], ["sum"]),
        helper.make_node("AveragePool", ["sum"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Squeeze", ["a"], ["y"], axes=[3]),
    ]
    weights = {"w": numbers(4, 2, 1, 1), "five": np.array([1, 2, 2, 4, 2]), "four": np.array([1, 4, 4, 2])}
    return nodes, {"x": (1, 4, 4, 2)}, weights


GRAPHS: dict[str, tuple[Callable[[], tuple[Nodes, dict[str, Sequence[int | str]], Weights]], int]] = {
    "TensorFlow": (tensorflow, 13),
    "MXNet": (mxnet, 7),
    "Caffe2": (caffe, 9),
}


@pytest.mark.parametrize("style", GRAPHS)
def test_graphs_of_other_exporters_compute_what_the_reference_does(style: str, tmp_path: Path) -> None:
    made, opset = GRAPHS[style]
    nodes, inputs, weights = made()
    listed = style != "TensorFlow"
    file = graph_file(tmp_path / "net.onnx", nodes, inputs, ["y"], weights, opset=opset, listed=listed)
    reference = file
    if style == "MXNet":  # the reference's batch norms before opset 15 train, and dropout has its rate apart then
        for node in (nodes[1], nodes[6]):
            node.attribute.remove(next(each for each in node.attribute if each.name in ("spatial", "ratio")))
        reference = graph_file(tmp_path / "reference.onnx", nodes, inputs, ["y"], weights, opset=15)

    # four samples, as its LRN takes the number of samples for that of channels, which is four
    assert differs(load(file, batch=4 if style == "MXNet" else None if listed else 2), reference) < 1e-5


@pytest.mark.parametrize("style", GRAPHS)
def test_graphs_of_other_exporters_train_with_a_batch_of_their_own(style: str, tmp_path: Path) -> None:
    # given a graph whose batch is free, or fixed to 1
    made, opset = GRAPHS[style]
    nodes, inputs, weights = made()
    file = graph_file(tmp_path / "net.onnx", nodes, inputs, ["y"], weights, opset=opset, listed=style != "TensorFlow")

    # when it trains with a batch of 3
    model = load(file, batch=3, logits=True)
    losses = GraphLosses(model)
    train(model, optimizer_of("sgd", model), batch_of(model), losses.targets(), losses, device="cpu", steps=1)

    # then every weight of floats that is no running statistic has a gradient
    floats = [array for name, array in weights.items() if array.dtype == np.float32 and name not in "mv"]
    assert [each.grad is not None for each in model.parameters()] == [True] * len(floats)
    assert next(iter(model.input_shapes.values()))[0] == 3


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17, 18])
def test_exports_of_all_opsets_compute_what_the_module_does(opset: int, tmp_path: Path) -> None:
    model = nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, 2),
        ),
        *(nn.ELU(), nn.Flatten(2), nn.LayerNorm(16), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 5, bias=False)),
    )
    x = torch.randn(2, 3, 8, 8)
    file = exported(model, [x], tmp_path / "net.onnx", opset_version=opset, **TRAINING)

    graph = load(file)

    with torch.no_grad():
        assert torch.allclose(graph.eval()(x), model.eval()(x), atol=1e-6)
    kinds = [type(each).__name__ for each in model.modules() if list(each.parameters(recurse=False))]
    assert [type(each).__name__ for each in graph.modules() if list(each.parameters(recurse=False))] == kinds


def held(nodes: Nodes, tmp_path: Path, *, shaped: bool) -> str:
    file = graph_file(tmp_path / "net.onnx", nodes, {"x": ("n", 4)}, ["y"], {"w": numbers(4, 4)})
    if shaped:
        model = onnx.load(file)
        model.graph.value_info.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, ["n", 4]))
        onnx.save(model, file)
    return file


UNKNOWN = [
    helper.make_node("MatMul", ["x", "w"], ["m"]),
    helper.make_node("FusedThing", ["m"], ["u"], domain="com.example"),
    helper.make_node("Relu", ["u"], ["y"]),
]


def test_an_unknown_op_with_a_known_shape_holds_at_least_its_results(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []

    model = load(held(UNKNOWN, tmp_path, shaped=True), batch=64, notes=lambda *each: said.append(each))

    # 64 x 4 floats of 4 bytes
    assert set(said) == {("unsupported", "ONNX op com.example.FusedThing, whose results hold at least 1.0 KiB")}
    x = torch.randn(64, 4)
    model(x).sum().backward()
    assert [tuple(each.shape) for each in model.parameters()] == [(4, 4)]


def test_unknown_ops_without_a_shape_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"are not known: com\.example\.FusedThing \(1\); allowed are"):
        load(held(UNKNOWN, tmp_path, shaped=False), batch=2)


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def test_weights_that_a_file_has_as_constants_train(tmp_path: Path) -> None:
    # given a convolution and a norm whose weights are Constant nodes, as paddle2onnx writes them, and a scale of 0.5
    weights = {"w": numbers(4, 3, 3, 3), "s": numbers(4), "b": numbers(4), "m": numbers(4), "v": np.abs(numbers(4))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        constant("half", np.array(0.5, np.float32)),
        helper.make_node("Mul", ["n", "half"], ["y"]),
    ]
    stored = graph_file(tmp_path / "stored.onnx", nodes, {"x": (2, 3, 8, 8)}, ["y"], weights)
    held = [*(constant(name, array) for name, array in weights.items()), *nodes]
    file = graph_file(tmp_path / "held.onnx", held, {"x": (2, 3, 8, 8)}, ["y"])

    said: list[str] = []
    model = load(file, notes=lambda _, text: said.append(text))

    shapes = [tuple(each.shape) for each in model.parameters()]
    assert shapes == [tuple(each.shape) for each in load(stored).parameters()] == [(4, 3, 3, 3), (4,), (4,)]
    assert said == ["5 arrays that the file has as constants are weights, as its layers take them"]
    assert differs(model, file) < 1e-5


def test_weights_that_a_file_makes_of_their_shapes_train(tmp_path: Path) -> None:
    # given the form of the light networks of ONNX's tests: 0.5 in each place of [5, 3], and zeros
    half = numpy_helper.from_array(np.array([0.5], np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"], value=half),
        helper.make_node("ConstantOfShape", ["length"], ["b"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
    ]
    shapes = {"shape": np.array([5, 3]), "length": np.array([5])}
    file = graph_file(tmp_path / "light.onnx", nodes, {"x": (2, 3)}, ["y"], shapes)

    model = load(file)

    assert [tuple(each.shape) for each in model.parameters()] == [(5, 3), (5,)]
    assert differs(model, file) < 1e-6
    assert [tuple(each.shape) for each in load(file, values=False).parameters()] == [(5, 3), (5,)]


def branching(condition: Sequence[onnx.NodeProto]) -> Nodes:
    """An If: a Gemm whose weight is stored in the branch, or the input halved; both are named alike."""
    made = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, None)
    gemm = helper.make_node("Gemm", ["x", "w"], ["r"])
    then = helper.make_graph([gemm], "then", [], [made], [numpy_helper.from_array(numbers(3, 3), "w")])
    other = helper.make_graph(
        [constant("two", np.array(2, np.float32)), helper.make_node("Div", ["x", "two"], ["r"])], "other", [], [made]
    )
    chosen = helper.make_node("If", ["chosen"], ["d"], name="choice", then_branch=then, else_branch=other)
    return [*condition, chosen, helper.make_node("Mul", ["d", "scale"], ["y"])]


@pytest.mark.parametrize(("batch", "weights"), [(2, [(3, 3), (3,)]), (4, [(3,)])])
def test_a_branch_that_is_chosen_by_shapes_takes_the_place_of_the_if(
    batch: int, weights: list[tuple[int, ...]], tmp_path: Path
) -> None:
    # given a branch with a weight for a batch of 2
    condition = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Equal", ["n", "two_samples"], ["chosen"]),
    ]
    stored = {"two_samples": np.array(2), "scale": numbers(3)}
    file = graph_file(tmp_path / "if.onnx", branching(condition), {"x": ("batch", 3)}, ["y"], stored)

    model = load(file, batch=batch)

    assert [tuple(each.shape) for each in model.parameters()] == weights
    assert differs(model, file) < 1e-6


def test_a_branch_that_values_choose_is_named_with_what_it_holds(tmp_path: Path) -> None:
    condition = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["chosen"]),
    ]
    stored = {"zero": np.array(0, np.float32), "scale": numbers(3)}
    file = graph_file(tmp_path / "if.onnx", branching(condition), {"x": ("batch", 3)}, ["y"], stored)

    # a weight of 9 floats and a constant of one; a Gemm in one branch, a constant and a Div in the other
    with pytest.raises(CaptureError, match=r"If \(1\) \(what runs inside .* values: 3 ops, with arrays of 40 B\)"):
        load(file)


def test_a_quantized_network_is_named_as_one(tmp_path: Path) -> None:
    # given a convolution as quantizers write it: its weight of bytes is scaled as it is read
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wide"]),
        helper.make_node("Conv", ["x", "wide", "bias"], ["y"]),
    ]
    stored = {
        "w": np.ones((4, 3, 3, 3), np.int8),
        "scale": np.array(0.1, np.float32),
        "zero": np.array(0, np.int8),
        "bias": numbers(4),
    }
    linear = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    file = graph_file(
        tmp_path / "linear.onnx",
        [linear],
        {"x": (2, 3, 8, 8)},
        ["y"],
        {"w": np.ones((4, 3, 3, 3), np.int8), "s": np.array(0.1, np.float32), "z": np.array(0, np.int8)},
    )

    with pytest.raises(
        CaptureError, match=r"given a quantized network: QLinearConv \(1\); allowed are weights of floats"
    ):
        load(file)
    with pytest.raises(CaptureError, match=r"given a quantized network: DequantizeLinear \(1\); allowed are"):
        load(graph_file(tmp_path / "read.onnx", nodes, {"x": (2, 3, 8, 8)}, ["y"], stored))


@pytest.mark.parametrize("mode", ["reflect", "edge"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((2, 6), (0, 1, 0, 2)),
        ((2, 3, 6), (0, 0, 1, 0, 0, 2)),
        ((2, 4, 6), (0, 1, 1, 0, 2, 2)),
        ((2, 3, 4, 6), (0, 0, 1, 2, 0, 0, 2, 1)),
        ((2, 3, 4, 6), (0, 0, 0, 2, 0, 0, 0, 1)),
    ],
)
def test_pads_by_what_is_there_have_any_number_of_dimensions(
    mode: str, shape: tuple[int, ...], pads: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["m"]),
        helper.make_node("Pad", ["m", "pads"], ["y"], mode=mode),
    ]
    stored = {"pads": np.array(pads), "scale": numbers(shape[-1])}
    file = graph_file(tmp_path / "pad.onnx", nodes, {"x": shape}, ["y"], stored)

    assert differs(load(file), file) < 1e-6


def test_free_dimensions_without_a_size_are_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    file = graph_file(tmp_path / "net.onnx", nodes, {"x": ("n", "tokens", 4)}, ["y"])

    with pytest.raises(UsageError, match=r"given no size for tokens; .*x \[n, tokens, 4\].*; add --dim tokens=SIZE"):
        load(file, batch=2)
    assert load(file, batch=2, sizes={"tokens": 7}).input_shapes == {"x": (2, 7, 4)}
    assert load(file, sizes={"x:0": 5, "x:1": 7}).input_shapes == {"x": (5, 7, 4)}
    with pytest.raises(UsageError, match="--dim: given words, which names no dimension"):
        load(file, sizes={"words": 7})


@pytest.mark.parametrize(
    ("nodes", "shape", "kind", "target"),
    [
        ([helper.make_node("Relu", ["x"], ["y"])], (4, 10), "cross_entropy", (4,)),
        ([helper.make_node("Relu", ["x"], ["y"])], (4, 10, 6, 5), "cross_entropy", (4, 6, 5)),
        ([helper.make_node("Relu", ["x"], ["y"])], (4, 1, 6), "mse", (4, 1, 6)),
        ([helper.make_node("LogSoftmax", ["x"], ["y"], axis=1)], (4, 10), "nll", (4,)),
        ([helper.make_node("Sigmoid", ["x"], ["y"])], (4, 10), "bce", (4, 10)),
    ],
)
def test_the_loss_follows_the_output(
    nodes: Nodes, shape: tuple[int, ...], kind: str, target: tuple[int, ...], tmp_path: Path
) -> None:
    losses = GraphLosses(load(graph_file(tmp_path / "net.onnx", nodes, {"x": shape}, ["y"])))

    assert losses.kinds == [kind]
    assert [tuple(each.shape) for each in losses.targets()] == [target]


def test_weights_and_constants_are_known_apart(tmp_path: Path) -> None:
    # given a mask, the scales of a Resize, a number of a formula, and two weights, one of which is to be frozen
    nodes = [
        helper.make_node("Conv", ["x", "body.conv.weight"], ["c"]),
        helper.make_node("Add", ["c", "mask"], ["m"]),
        helper.make_node("Mul", ["m", "number"], ["k"]),
        helper.make_node("Add", ["k", "head.place"], ["s"]),
        helper.make_node("Resize", ["s", "", "scales"], ["y"]),
    ]
    weights: dict[str, Any] = {
        "body.conv.weight": numbers(2, 3, 1, 1),
        "mask": np.array([[0.0, -3.4e38]], np.float32),
        "number": np.array([0.5], np.float32),
        "head.place": numbers(2, 2, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    file = graph_file(tmp_path / "net.onnx", nodes, {"x": (1, 3, 2, 2)}, ["y"], weights)

    model = load(file, frozen=["body.*"])

    assert {name: each.requires_grad for name, each in model.named_parameters()} == {
        "body.conv.weight": False,
        "head.place": True,
    }
    assert differs(load(file), file) < 1e-6


@pytest.mark.parametrize("pads", [(0, 0, 0, 0, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0, 2)])
def test_a_pad_copies_as_it_does_in_the_original_even_by_nothing(pads: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"])]
    weights = {"pads": np.array(pads, np.int64)}
    file = graph_file(tmp_path / "net.onnx", nodes, {"x": (1, 2, 3, 4)}, ["y"], weights)
    graph, x = load(file), torch.randn(1, 2, 3, 4)

    assert graph(x).data_ptr() != x.data_ptr()
    assert differs(load(file), file) == 0
