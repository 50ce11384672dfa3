"""`elbowroom estimate model.onnx` and other verbs: an ONNX graph in place of a script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.cli import main
from tests.cli.answers import answered
from tests.torch.onnx_files import TRAINING, exported

FREE = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    path = tmp_path_factory.mktemp("onnx") / "mlp.onnx"
    return exported(model, [torch.randn(1, 64)], path, **FREE, **TRAINING)


def figures(capsys: Any, *words: str) -> dict[str, Any]:
    code = main([*words, "--json"])
    found = answered(capsys.readouterr().out, words[0])
    assert code == (0 if found.get("fits", True) else 1)
    return found


def test_a_graph_is_estimated_as_a_training_step(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", file, "--train", "--optimizer", "adamw", "--batch", "32", "--gpu", "t4")

    found = figures(capsys, *words)

    (answer,) = found["estimates"]
    # weights (64 + 1) 256 + (256 + 1) 10 = 19,210 floats; AdamW keeps two numbers for each (its counts are on the host)
    assert found["script"] == file
    assert answer["categories"]["parameter"] == 4 * 19_210
    assert answer["categories"]["optimizer_state"] == 2 * 4 * 19_210
    assert {each["module"] for each in answer["modules"]} >= {"GraphModel.0", "GraphModel.2"}


def test_the_largest_batch_of_a_graph_is_searched(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "largest", file, "--vary", "batch=1..2", "--gpu", "t4", "--optimizer", "sgd")

    assert (found["name"], found["largest"]["value"]) == ("--batch", 2)


def test_a_free_dimension_without_a_size_is_an_error_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch", 1: "length"}}}
    long = exported(nn.Linear(8, 4), [torch.randn(2, 3, 8)], tmp_path / "long.onnx", **axes)

    assert main(["estimate", long, "--gpu", "t4"]) == 2
    said = capsys.readouterr().err
    assert "given no size for length; allowed is a size for each free dimension" in said
    assert "add --dim length=SIZE" in said


def test_options_of_graphs_are_refused_with_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("", "utf-8")

    assert main(["estimate", str(script), "--batch", "4", "--gpu", "t4"]) == 2
    said = capsys.readouterr().err
    assert "--batch: given without an ONNX graph" in said
    assert "-- --batch 4" in said


def test_a_file_that_is_no_graph_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")

    assert main(["estimate", str(broken), "--gpu", "t4"]) == 2
    assert "given a file that cannot be read as an ONNX graph" in capsys.readouterr().err


def test_without_the_library_the_extra_is_named(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from elbowroom.frameworks.onnx import load

    monkeypatch.setitem(sys.modules, "onnx", None)

    with pytest.raises(Exception, match=r"run `pip install 'elbowroom\[onnx\]'`"):
        load(file)
