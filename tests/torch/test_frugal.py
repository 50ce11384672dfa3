"""Frugal steps: what leaves when in a step without a plan, and what it then holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elbowroom.capture.recording.observing_director import Observing
from elbowroom.run.room import run_of
from tests.torch.helpers import Training, mean_square, same_within

COLUMNS = 64
Rows = Sequence[int]


class Chain(nn.Module):
    """Ops one after the other whose results autograd saves."""

    def __init__(self, op: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, COLUMNS))
        self._op = op

    def forward(self, x: Tensor) -> Tensor:
        found = x * self.scale
        for _ in range(8):
            found = self._op(found)
        return found


def of_rows(rows: Rows, op: Callable[[Tensor], Tensor]) -> Training:
    """A training whose n-th batch has the n-th number of rows."""
    model = Chain(op)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        count = rows[number]
        loss = mean_square(model(torch.linspace(-1, 1, count * COLUMNS).view(count, COLUMNS)))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [model], [optimizer])


@pytest.fixture
def at_saves(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Per storage of a step without a plan: whether it left at its save."""
    found: list[bool] = []
    first_save = Observing.first_save

    def noted(self: Observing, storage: torch.UntypedStorage, tensor: Tensor) -> object:
        entry = first_save(self, storage, tensor)
        if entry is not None:
            found.append(entry not in self.held)
        return entry

    monkeypatch.setattr(Observing, "first_save", noted)
    return found


def test_storages_of_another_shape_leave_at_their_saves_and_less_is_held(at_saves: list[bool]) -> None:
    # given two shapes of one size, far from each other for a plan
    rows = [4096, 8192]
    room = same_within(lambda: of_rows(rows, torch.sin), len(rows), budget=64 << 20)
    # then
    half = len(at_saves) // 2
    assert at_saves == [False] * half + [True] * half
    # and twice the rows hold less than twice the bytes, by a storage of the smaller step: 4096 * 64 * 4 bytes
    larger, smaller = list(run_of(room).kinds)
    assert larger.measured_peak_allocated_bytes <= 2 * smaller.measured_peak_allocated_bytes - 4096 * COLUMNS * 4


def test_what_an_op_fills_after_its_save_leaves_once_only_autograd_holds_it(at_saves: list[bool]) -> None:
    rows = [256, 64, 512]
    same_within(lambda: of_rows(rows, lambda x: F.rrelu(x, training=True)), len(rows), budget=64 << 20)
    assert at_saves
    assert not any(at_saves)
