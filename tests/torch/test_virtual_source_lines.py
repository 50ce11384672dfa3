"""The line of the user's code that each op of a virtual device comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.capture.source_lines import SourceLines
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.trace import Trace
from tests.torch.virtual_gpu import H100

HERE = str(Path(__file__).relative_to(Path(__file__).parents[2]))


def scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


def line_of(function: Any, offset: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + offset} in {function.__qualname__}"


def trained(function: Any) -> Trace:
    """Two steps of a function of inputs and a weight."""
    with VirtualDevice(H100, steps=None) as device:
        weight = torch.ones(64, 64, device="cuda").requires_grad_()
        optimizer = torch.optim.SGD([weight])
        for _ in range(2):
            function(torch.ones(32, 64, device="cuda"), weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return device.trace()


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def lines_of(trace: Trace, name: str, phase: str) -> set[str]:
    return {trace.source_line(at) for at, op in enumerate(trace.ops) if (op.name, op.phase) == (name, phase)}


def test_an_op_has_the_line_that_called_it_and_its_backward_has_the_same() -> None:
    trace = trained(scaled)

    assert lines_of(trace, "aten.mm", "forward") == {line_of(scaled, 1)}
    assert lines_of(trace, "aten.mm", "backward") == {line_of(scaled, 1)}
    assert lines_of(trace, "aten.sum", "forward") == {line_of(trained, 6)}
    # no line stands twice, and each is of some op
    assert set(trace.op_source_lines) - {None} == set(range(len(trace.source_lines)))


def masked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = x @ weight
    with torch.no_grad():
        mask = torch.ones(32, 64, device="cuda").tril()
    return y * mask


def test_an_op_without_a_node_does_not_take_the_line_of_the_node_before_it() -> None:
    trace = trained(masked)

    assert lines_of(trace, "aten.tril", "forward") == {line_of(masked, 3)}
    assert lines_of(trace, "aten.mm", "backward") == {line_of(masked, 1)}
    assert lines_of(trace, "aten.mul", "backward") == {line_of(masked, 4)}


def test_what_torch_calls_for_the_user_has_the_line_of_the_user() -> None:
    trace = trained(lambda x, weight: torch.nn.functional.linear(x, weight))

    (line,) = lines_of(trace, "aten.mm", "forward")
    assert line.startswith(f"{HERE}:")
    assert {each.partition(":")[0] for each in trace.source_lines} == {HERE}


def test_the_number_of_a_line_is_made_once_and_paths_are_short(tmp_path: Path) -> None:
    source = "def called(lines):\n    return [lines.here() for _ in range(2)]\n"
    for name in ("work/train.py", "venv/lib/site-packages/zoo/nets.py"):
        path, found = tmp_path / name, {}
        exec(compile(source, str(path), "exec"), found)
        lines = SourceLines()
        assert found["called"](lines) == [0, 0]
        assert lines.texts == [f"{name.partition('site-packages/')[2] or name}:2 in called"]
