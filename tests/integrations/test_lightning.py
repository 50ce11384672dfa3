"""The callback for Lightning: accumulated, clipped, validated, saved and resumed trainings keep their bits."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import elbowroom as er
from tests.integrations.both_ways import blocks, outcome, rows, same_within, tight
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal, moved_categories

lightning: Any = pytest.importorskip(
    "lightning", reason="lightning is not installed: `make test-integrations` does that"
)
ours: Any = pytest.importorskip("elbowroom.integrations.lightning")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCHES, ROWS = 8, 512


class Net(lightning.LightningModule):
    """Blocks that are trained to return little; `failing` breaks its third step."""

    def __init__(self, *, failing: bool = False) -> None:
        super().__init__()
        self.blocks, self.seen, self.failing = blocks(), [], failing

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        if self.failing and number == 2:
            raise KeyError("a mistake of the user")
        loss = self.blocks(batch).square().mean()
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch: Tensor, _: int) -> None:
        self.log("validated", self.blocks(batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class InTurn(Net):
    """Two optimizers by hand, as adversarial training has them."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization, self.others = False, blocks()

    def training_step(self, batch: Tensor, number: int) -> None:
        for net, optimizer in zip((self.blocks, self.others), self.optimizers(), strict=True):
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            self.manual_backward(loss)
            optimizer.step()
            self.seen.append(loss.item())

    def configure_optimizers(self) -> Any:
        return [torch.optim.AdamW(net.parameters(), 1e-3) for net in (self.blocks, self.others)]


def fit(folder: Path, callback: Any, net: Any, others: Any = (), resumes: Path | None = None, **options: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    given = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
    }
    callbacks = [*others, *([] if callback is None else [callback])]
    trainer = lightning.Trainer(**given | options, callbacks=callbacks)
    data = DataLoader(rows(BATCHES * ROWS), batch_size=ROWS)  # pyright: ignore[reportArgumentType]
    trainer.fit(net, data, DataLoader(rows(ROWS, seed=2), batch_size=ROWS), ckpt_path=resumes)  # pyright: ignore[reportArgumentType]
    return trainer


WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "as it is": ({}, BATCHES),
    "accumulated and clipped": ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, BATCHES // 2),
    "validated in between": ({"val_check_interval": 3}, BATCHES),
    "bfloat16": ({"precision": "bf16-mixed"}, BATCHES),
    "two epochs": ({"max_epochs": 2}, 2 * BATCHES),
}


@pytest.mark.parametrize("way", WAYS)
def test_lightning_gives_the_same_numbers_within_a_budget(way: str, tmp_path: Path) -> None:
    options, steps = WAYS[way]

    def train(callback: Any) -> Outcome:
        lightning.seed_everything(0, verbose=False)
        net = Net()
        fit(tmp_path, callback, net, **options)
        return outcome(net.seen, net)

    room = same_within(train, ours.LightningRoom)

    assert len(room.steps) == steps


def test_optimizer_states_leave_though_the_optimizer_gets_a_closure(tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        lightning.seed_everything(0, verbose=False)
        net = Net()
        net.blocks = blocks(64, 6)
        data = DataLoader(rows(BATCHES * 4, 64), batch_size=4)  # pyright: ignore[reportArgumentType]
        options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "max_epochs": 1}
        callbacks = [] if callback is None else [callback]
        lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, callbacks=callbacks, **options).fit(net, data)
        return outcome(net.seen, net)

    room = same_within(train, ours.LightningRoom, share=0.1, allow=("swap", "state"))

    assert "optimizer_state" in moved_categories(room)


def test_two_optimizers_by_hand_give_the_same_numbers(tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        lightning.seed_everything(0, verbose=False)
        net = InTurn()
        fit(tmp_path, callback, net)
        return outcome(net.seen, net)

    # the first observed step of either optimizer lacks the states that the other one will have
    same_within(train, ours.LightningRoom, over=True)


def test_a_training_is_resumed_from_a_checkpoint_of_another_that_ran_within_a_budget(tmp_path: Path) -> None:
    def train(callback: Any, folder: str, resumes: Path | None = None) -> Outcome:
        gc.collect()
        lightning.seed_everything(0, verbose=False)
        net = Net()
        saves = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / folder, "{step}", every_n_train_steps=4, save_top_k=-1
        )
        fit(tmp_path, callback, net, [saves], resumes, enable_checkpointing=True)
        return outcome(net.seen, net)

    # when
    plain = train(None, "plain")
    budget = tight(lambda callback: train(callback, "plenty"), ours.LightningRoom)
    rooms = [ours.LightningRoom(budget, min_size=MIN_SIZE_BYTES) for _ in range(2)]
    whole = train(rooms[0], "within")
    second = train(rooms[1], "second", tmp_path / "within" / "step=4.ckpt")
    # then
    assert_equal(whole, plain)
    assert_equal(second, train(None, "third", tmp_path / "plain" / "step=4.ckpt"))
    assert len(rooms[1].room.steps) == BATCHES - 4


def test_early_stopping_ends_the_room(tmp_path: Path) -> None:
    def train(callback: Any) -> Outcome:
        lightning.seed_everything(0, verbose=False)
        net = Net()
        stopping = lightning.pytorch.callbacks.EarlyStopping("validated", patience=1, min_delta=10.0)
        fit(tmp_path, callback, net, [stopping], val_check_interval=2)
        assert len(net.seen) == 4  # the second validation is no better by 10
        return outcome(net.seen, net)

    same_within(train, ours.LightningRoom)


def test_an_error_closes_the_room_and_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="a mistake of the user") as seen:
        fit(tmp_path, ours.LightningRoom("1TiB"), Net(failing=True))

    assert not getattr(seen.value, "__notes__", [])
    with er.within("1TiB"):
        pass


def test_a_budget_that_no_plan_meets_ends_the_training_with_the_least(tmp_path: Path) -> None:
    with pytest.raises(er.Infeasible, match=r"The least that "):
        fit(tmp_path, ours.LightningRoom("1MiB"), Net())
    with er.within("1TiB"):
        pass
