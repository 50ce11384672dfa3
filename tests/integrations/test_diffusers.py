"""A loop as in the training scripts of diffusers, inside `within`: a U-Net learns to take noise away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.integrations.both_ways import Around, alone, around, outcome, rows, same_within
from tests.torch.helpers import Outcome, assert_equal

REASON = "is not installed: docs/integrations.md says how"
diffusers: Any = pytest.importorskip("diffusers", reason=f"diffusers {REASON}")
accelerate: Any = pytest.importorskip("accelerate", reason=f"accelerate {REASON}")
from diffusers.optimization import get_scheduler  # noqa: E402  # pyright: ignore[reportMissingImports]
from diffusers.training_utils import EMAModel  # noqa: E402  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCH, BATCHES, SIDE = 8, 6, 16


def unet() -> Any:
    return diffusers.UNet2DModel(
        sample_size=SIDE,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def loop(folder: Path, *, resumes: bool = False, ends: int = 2, checkpoints: bool = False, **options: Any) -> Outcome:
    """As `main` of examples/unconditional_image_generation/train_unconditional.py, each epoch with its own seed."""
    torch.manual_seed(0)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model, noise_scheduler = unet(), diffusers.DDPMScheduler(num_train_timesteps=100)
    if checkpoints:
        model.enable_gradient_checkpointing()
    average = EMAModel(model.parameters(), decay=0.9, model_cls=diffusers.UNet2DModel, model_config=model.config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=4 * BATCHES)
    images = rows(BATCH * BATCHES, 3 * SIDE * SIDE).view(-1, 3, SIDE, SIDE)
    data: Any = DataLoader(images, batch_size=BATCH)  # pyright: ignore[reportArgumentType]
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    accelerator.register_for_checkpointing(average)
    if resumes:
        accelerator.load_state(str(folder / "checkpoint"))
    losses: list[float] = []
    for epoch in range(int(resumes), ends):
        torch.manual_seed(1 + epoch)
        model.train()
        for clean in data:
            noise = torch.randn(clean.shape)
            steps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(clean),))
            noisy = noise_scheduler.add_noise(clean, noise, steps)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(noisy, steps).sample.float(), noise)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                average.step(model.parameters())
            losses.append(loss.item())
        accelerator.save_state(str(folder / "checkpoint"))
    bare = accelerator.unwrap_model(model)
    bare.save_pretrained(folder / "unet")
    found = diffusers.UNet2DModel.from_pretrained(folder / "unet").state_dict()
    assert all(torch.equal(value, found[name]) for name, value in bare.state_dict().items())
    average.copy_to(bare.parameters())
    return outcome(losses, torch.nn.ModuleList([diffusers.UNet2DModel.from_pretrained(folder / "unet"), bare]))


WAYS: dict[str, dict[str, Any]] = {
    "one batch a step": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "bfloat16": {"mixed_precision": "bf16"},
    "gradient checkpoints": {"checkpoints": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_of_diffusers_gives_the_same_numbers_within_a_budget(way: str, tmp_path: Path) -> None:
    same_within(around(lambda: loop(tmp_path, **WAYS[way])), Around, over=True)


def test_a_training_is_resumed_from_a_state_that_was_saved_within_a_budget(tmp_path: Path) -> None:
    plain = alone(lambda _: loop(tmp_path), None)

    same_within(around(lambda: loop(tmp_path, ends=1)), Around, over=True)
    again = loop(tmp_path, resumes=True)
    # then the second epoch and the weights at its end are those of two epochs without a break
    assert_equal(again, Outcome(plain.losses[BATCHES:], plain.state))
