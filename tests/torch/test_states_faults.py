"""A disk that fails while optimizer states are on it: a clear error, nothing that crashes, nothing left behind."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.errors import TierFailed
from tests.torch.helpers import MIN_SIZE_BYTES, Training, finish, mlp, needs, ordinary, seeded

WIDTH, DEPTH = 48, 6


def setup() -> Training:
    model = mlp(WIDTH, DEPTH)
    return ordinary(model, torch.randn(8, WIDTH), optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def fails(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(("call", "doing"), [("preadv", "reading"), ("pwrite", "writing")])
def test_a_disk_that_fails_under_states_is_said_and_none_of_them_is_left_without_bytes(
    call: str, doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a training whose states are away
    least, _ = needs(setup)
    training, threads = seeded(setup), threading.active_count()
    budget = least - DEPTH * WIDTH * WIDTH * 4

    def run() -> None:
        with er.within(budget, spill_dir=tmp_path, min_size=MIN_SIZE_BYTES) as room:
            finish(training, 4)
            assert room.plan is not None
            assert room.plan.planner == "swap_states"
            monkeypatch.setattr(os, call, fails)
            finish(training, 4)

    # when
    with pytest.raises(TierFailed, match=doing):
        run()
    monkeypatch.undo()

    # then every state has its bytes again, those that were lost as NaN or as they were, and training can go on
    states = [v for values in training.optimizers[0].state.values() for v in values.values() if isinstance(v, Tensor)]
    assert all(state.untyped_storage().nbytes() >= state.numel() * state.element_size() for state in states)
    assert torch.isnan(torch.stack([state.sum() for state in states])).any() == (call == "preadv")
    finish(training, 1)
    assert threading.active_count() <= threads
    assert not list(tmp_path.iterdir())
