"""The line of the user's code in recordings of real runs: where autograd saves, and where an optimizer steps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import elbowroom as er
from elbowroom.capture.recording.recorder import Recorder
from elbowroom.capture.source_lines import SourceLines
from elbowroom.step.owners import owners_of
from elbowroom.trace import Trace

HERE = str(Path(__file__).relative_to(Path(__file__).parents[2]))
ROWS, WIDTH = 2048, 256
BUDGET = "18MiB"
"""Six layers and the loss save 2 MiB each: 26.5 MiB in all with weights, gradients and what ops hold."""


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def line_of(function: Any, offset: int) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + offset} in {function.__qualname__}"


def layer(hidden: Tensor, weight: Tensor) -> Tensor:
    hidden = hidden @ weight
    hidden = hidden + 1
    return F.gelu(hidden)


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def setup() -> Callable[[], float]:
    """Two layers without a module."""
    torch.manual_seed(0)
    weights = [torch.full((WIDTH, WIDTH), 0.01).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    batch = torch.ones(ROWS, WIDTH)

    def step() -> float:
        optimizer.zero_grad()
        loss = layer(layer(batch, weights[0]), weights[1]).sum()
        loss.backward()
        update(optimizer)
        return loss.item()

    return step


def lines_of(trace: Trace, name: str, phase: str) -> set[str]:
    return {trace.source_line(at) for at, op in enumerate(trace.ops) if (op.name, op.phase) == (name, phase)}


def test_an_op_that_saves_has_the_users_line_and_so_has_its_backward() -> None:
    trace = er.capture(setup, steps=2)

    for phase in ("forward", "backward"):
        assert lines_of(trace, "aten.mm", phase) == {line_of(layer, 1)}
    assert lines_of(trace, "aten.gelu", "forward") == {line_of(layer, 3)}
    assert lines_of(trace, "aten.gelu_backward", "backward") == {line_of(layer, 3)}
    # nothing is saved for a sum of a tensor and a number, and so nothing tells its line
    assert lines_of(trace, "aten.add", "forward") == {""}
    assert {trace.source_line(at) for at, op in enumerate(trace.ops) if op.phase == "optimizer"} == {line_of(update, 1)}
    assert set(trace.op_source_lines) - {None} == set(range(len(trace.source_lines)))


def test_memory_of_no_module_is_named_by_the_line_that_made_or_first_saved_it() -> None:
    trace = er.capture(setup, steps=2)
    lines = owners_of(trace).lines

    first, _ = trace.steps[-1]
    saved = {save.storage: lines.get(save.storage) for save in trace.saves if save.saved_at >= first}
    # the batch is saved for @, each sum for gelu, and the first gelu for the second @, which it is made by
    assert [*saved.values()] == [line_of(layer, 1), line_of(layer, 3), line_of(layer, 3), line_of(layer, 3)]


def trained(model: nn.Module, steps: int) -> list[str]:
    """Losses of a model whose loss no module computes."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch, labels = torch.randn(ROWS, WIDTH), torch.arange(ROWS) % WIDTH
    losses: list[str] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()).hex())
    return losses


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6)])


def test_a_run_knows_the_line_of_a_loss_and_its_numbers_are_the_same(tmp_path: Path) -> None:
    with er.within(BUDGET, spill_dir=tmp_path) as room:
        losses = trained(model(), 5)

    assert losses == trained(model(), 5)
    assert room.trace is not None
    assert lines_of(room.trace, "aten._log_softmax", "forward") == {line_of(trained, 8)}
    assert lines_of(room.trace, "aten._log_softmax_backward_data", "backward") == {line_of(trained, 8)}
    assert any(step.swapped_out_bytes for step in room.steps)


def test_no_line_is_asked_for_where_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    recorders: list[Recorder] = []
    here, start = SourceLines.here, Recorder.start
    monkeypatch.setattr(Recorder, "start", lambda self, *given: (recorders.append(self), start(self, *given))[1])
    monkeypatch.setattr(
        SourceLines, "here", lambda self: (asked.append(any(each.active for each in recorders)), here(self))[1]
    )

    with er.within(BUDGET, spill_dir=tmp_path) as room:
        trained(model(), 6)

    # the first steps are recorded, one each; the others are not
    assert 0 < len(recorders) < len(room.steps)
    assert asked
    assert all(asked)


class Large:
    """Something that a step of the user holds in a variable."""


def test_a_recording_keeps_no_frame_of_the_user() -> None:
    died: list[str] = []

    def watched() -> Callable[[], float]:
        step = setup()

        def outer() -> float:
            held = Large()
            weakref.finalize(held, died.append, "step")
            return step()

        return outer

    gc.collect()
    gc.disable()
    try:
        er.capture(watched, steps=2)
        assert died == ["step", "step"]
    finally:
        gc.enable()
