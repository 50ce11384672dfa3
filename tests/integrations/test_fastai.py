"""The callback for fastai: validated, accumulated, saved and resumed trainings keep their bits."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import elbowroom as er
from tests.integrations.both_ways import blocks, outcome, rows, same_within, tight
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal

callbacks: Any = pytest.importorskip(
    "fastai.callback.core", reason="fastai is not installed: docs/integrations.md says how"
)
learner: Any = pytest.importorskip("fastai.learner")
training: Any = pytest.importorskip("fastai.callback.training")
data_core: Any = pytest.importorskip("fastai.data.core")
ours: Any = pytest.importorskip("elbowroom.integrations.fastai")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCHES, ROWS = 8, 512


class Losses(callbacks.Callback):
    """Notes the loss of each batch."""

    def before_fit(self) -> None:
        self.seen: list[float] = []

    def after_loss(self) -> None:
        self.seen.append(self.learn.loss.item())


class Breaks(callbacks.Callback):
    """Ends a training with an error after some steps."""

    def after_step(self) -> None:
        if self.learn.iter == 2:
            raise KeyError("a mistake of the user")


def made(folder: Path, callback: Any, others: Any = ()) -> Any:
    gc.collect()  # what the training before left
    torch.manual_seed(0)
    sets = [TensorDataset(x := rows(count * ROWS, seed=seed), x) for count, seed in ((BATCHES, 1), (1, 2))]
    loaders = data_core.DataLoaders(*(DataLoader(each, batch_size=ROWS) for each in sets), device=torch.device("cpu"))
    room = [] if callback is None else [callback]
    found = learner.Learner(loaders, blocks(), torch.nn.MSELoss(), cbs=[*others, *room, Losses()], path=folder)
    found.remove_cb(found.progress) if hasattr(found, "progress") else None
    return found


def trained(folder: Path, callback: Any, others: Any = (), epochs: int = 2) -> Outcome:
    found = made(folder, callback, others)
    with found.no_logging():
        found.fit(epochs, 1e-3)
    return outcome(found.losses.seen, found.model)


def test_fastai_gives_the_same_numbers_within_a_budget(tmp_path: Path) -> None:
    room = same_within(lambda callback: trained(tmp_path, callback), ours.FastaiRoom, over=True)

    assert len(room.steps) == 2 * BATCHES


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        return trained(tmp_path, callback, [training.GradientAccumulation(2 * ROWS), training.GradientClip(0.1)])

    room = same_within(train, ours.FastaiRoom)

    assert len(room.steps) == BATCHES


def test_a_training_goes_on_from_a_file_that_was_saved_within_a_budget(tmp_path: Path) -> None:
    def first(callback: Any, name: str) -> Outcome:
        found = made(tmp_path, callback)
        with found.no_logging():
            found.fit(1, 1e-3)
        found.save(name)
        return outcome(found.losses.seen, found.model)

    def second(callback: Any, name: str) -> Outcome:
        found = made(tmp_path, callback).load(name)
        with found.no_logging():
            found.fit(1, 1e-3, reset_opt=False)
        return outcome(found.losses.seen, found.model)

    # when
    plain = first(None, "plain")
    budget = tight(lambda callback: first(callback, "plenty"), ours.FastaiRoom)
    assert_equal(first(ours.FastaiRoom(budget, min_size=MIN_SIZE_BYTES), "within"), plain)
    # then
    room = ours.FastaiRoom(budget, min_size=MIN_SIZE_BYTES)
    assert_equal(second(room, "within"), second(None, "plain"))


def test_a_room_that_an_error_left_open_is_closed_by_hand(tmp_path: Path) -> None:
    callback = ours.FastaiRoom("1TiB")
    with pytest.raises(KeyError, match="a mistake of the user"):
        trained(tmp_path, callback, [Breaks()])
    callback.close()
    with er.within("1TiB"):
        pass
