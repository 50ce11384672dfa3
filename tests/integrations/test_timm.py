"""timm's parts of a training inside `within`: its models, optimizers, schedules, averages, savers and clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.both_ways import Around, alone, around, outcome, rows, same_within
from tests.torch.helpers import Outcome, assert_equal

timm: Any = pytest.importorskip("timm", reason="timm is not installed: docs/integrations.md says how")
from timm import data, loss, optim, scheduler, utils  # noqa: E402  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCH, BATCHES, SIDE, CLASSES = 8, 6, 32, 10


def loop(folder: Path, *, accumulate: int = 1, half: bool = False, ends: int = 2, resumes: bool = False) -> Outcome:
    """As `train_one_epoch` of timm's train.py: mixup, accumulation, clipping, average weights, a saver."""
    utils.random_seed(1)
    net = timm.create_model("resnet10t", num_classes=CLASSES, drop_path_rate=0.1)
    optimizer = optim.create_optimizer_v2(net, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule, _ = scheduler.create_scheduler_v2(optimizer, sched="cosine", num_epochs=4, warmup_epochs=1)
    average = utils.ModelEmaV3(net, decay=0.9)
    mix = data.Mixup(mixup_alpha=0.2, num_classes=CLASSES)
    begins = 0
    if resumes:
        begins = timm.models.resume_checkpoint(net, str(folder / "last.pth.tar"), optimizer, log_info=False)
        timm.models.load_checkpoint(average.module, str(folder / "last.pth.tar"), use_ema=True)
        schedule.step(begins)
    saver = utils.CheckpointSaver(net, optimizer, model_ema=average, checkpoint_dir=str(folder), decreasing=True)
    images = rows(BATCH * BATCHES, 3 * SIDE * SIDE).view(-1, 3, SIDE, SIDE)
    loader = DataLoader(TensorDataset(images, torch.arange(len(images)) % CLASSES), batch_size=BATCH)
    criterion, losses = loss.SoftTargetCrossEntropy(), list[float]()
    for epoch in range(begins, ends):
        utils.random_seed(10 + epoch)
        net.train()
        for number, (batch, labels) in enumerate(loader):
            mixed, target = mix(batch, labels)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                found = criterion(net(mixed), target) / accumulate
            found.backward()
            losses.append(found.item())
            if (number + 1) % accumulate:
                continue
            utils.dispatch_clip_grad(net.parameters(), value=1.0)
            optimizer.step()
            optimizer.zero_grad()
            average.update(net)
        schedule.step(epoch + 1)
        net.eval()
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(net(images[:BATCH]), torch.arange(BATCH)).item())
        saver.save_checkpoint(epoch, losses[-1])
    return outcome(losses, torch.nn.ModuleList([net, average.module]))


WAYS: dict[str, dict[str, Any]] = {
    "one batch a step": {},
    "accumulated": {"accumulate": 3},
    "bfloat16": {"half": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_with_the_parts_of_timm_gives_the_same_numbers_within_a_budget(way: str, tmp_path: Path) -> None:
    same_within(around(lambda: loop(tmp_path, **WAYS[way])), Around, over=True)


def test_a_training_is_resumed_from_a_checkpoint_that_was_saved_within_a_budget(tmp_path: Path) -> None:
    plain = alone(lambda _: loop(tmp_path), None)

    same_within(around(lambda: loop(tmp_path, ends=1)), Around, over=True)
    again = loop(tmp_path, resumes=True)
    # then the second epoch and the weights at its end are those of two epochs without a break
    last = len(plain.losses) // 2
    assert_equal(again, Outcome(plain.losses[last:], plain.state))
