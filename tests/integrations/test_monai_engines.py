"""The handler for MONAI's engines, and for those of ignite: validated, saved and resumed trainings keep their bits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import elbowroom as er
from tests.integrations.both_ways import outcome, same_within
from tests.torch.helpers import Outcome, assert_equal

monai: Any = pytest.importorskip("monai", reason="monai is not installed: `make test-integrations` does that")
pytest.importorskip("ignite", reason="pytorch-ignite is not installed: `make test-integrations` does that")
ours: Any = pytest.importorskip("elbowroom.integrations.monai")
engines: Any = pytest.importorskip("monai.engines")
handlers: Any = pytest.importorskip("monai.handlers")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

VOLUMES, SIDE, EPOCHS = 6, 16, 2


class Volumes:
    """Random volumes with a mask each."""

    def __init__(self, failing: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(VOLUMES, 1, SIDE, SIDE, SIDE, generator=generator)
        self.failing = failing

    def __len__(self) -> int:
        return VOLUMES

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        if self.failing and n == 3:
            raise KeyError("a mistake of the user")
        return {"image": self.images[n], "label": (self.images[n] > 0).float()}


def unet() -> Any:
    torch.manual_seed(0)
    return monai.networks.nets.UNet(3, 1, 1, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, norm="instance")


def trained(callback: Any, more: Any = (), failing: bool = False, epochs: int = EPOCHS, **options: Any) -> Outcome:
    logging.disable(logging.CRITICAL)
    net, seen = unet(), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validator = engines.SupervisedEvaluator(torch.device("cpu"), DataLoader(Volumes(), batch_size=2), net)  # pyright: ignore[reportArgumentType]
    noted = handlers.StatsHandler(
        tag_name="loss", output_transform=lambda output: seen.append(output[0]["loss"]) or 0.0
    )
    ours_first = [] if callback is None else [callback]
    trainer = engines.SupervisedTrainer(
        torch.device("cpu"),
        epochs,
        DataLoader(Volumes(failing), batch_size=2),  # pyright: ignore[reportArgumentType]
        net,
        optimizer,
        monai.losses.DiceLoss(sigmoid=True),
        train_handlers=[
            *ours_first,
            handlers.ValidationHandler(1, validator),
            noted,
            *(make(net, optimizer) for make in more),
        ],
        **options,
    )
    try:
        trainer.run()
    finally:
        logging.disable(logging.NOTSET)
    return outcome(seen, net)


WAYS: dict[str, dict[str, Any]] = {"as it is": {}, "bfloat16": {"amp": True, "amp_kwargs": {"dtype": torch.bfloat16}}}


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_gives_the_same_numbers_within_a_budget(way: str) -> None:
    room = same_within(lambda callback: trained(callback, **WAYS[way]), ours.MonaiRoom, over=True)

    assert len(room.steps) == EPOCHS * VOLUMES // 2


def test_a_training_goes_on_from_a_checkpoint_that_was_saved_within_a_budget(tmp_path: Path) -> None:
    def saves(net: Any, optimizer: Any) -> Any:
        saved = {"net": net, "optimizer": optimizer}
        return handlers.CheckpointSaver(str(tmp_path), saved, save_interval=1, epoch_level=True, file_prefix="room")

    def loads(net: Any, optimizer: Any) -> Any:
        file = next(tmp_path.glob(f"*epoch={EPOCHS}.pt"))
        return handlers.CheckpointLoader(str(file), {"net": net, "optimizer": optimizer})

    # when
    same_within(lambda callback: trained(callback, [saves]), ours.MonaiRoom, over=True)
    file = torch.load(next(tmp_path.glob(f"*epoch={EPOCHS}.pt")))
    # then what was saved is what a plain training has, and both go on alike
    assert_equal(Outcome([], file["net"]), Outcome([], trained(None).state))
    assert_equal(trained(ours.MonaiRoom("1TiB"), [loads], epochs=1), trained(None, [loads], epochs=1))


def test_a_bundle_names_the_handler() -> None:
    parser = monai.bundle.ConfigParser(
        {"room": {"_target_": "elbowroom.integrations.monai.MonaiRoom", "budget": "1TiB"}}
    )

    assert isinstance(parser.get_parsed_content("room"), ours.MonaiRoom)


def test_an_error_closes_the_room_and_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="a mistake of the user"):
        trained(ours.MonaiRoom("1TiB"), failing=True)
    with er.within("1TiB"):
        pass


def test_a_budget_that_no_plan_meets_ends_the_training_with_the_least() -> None:
    with pytest.raises(er.Infeasible, match=r"The least that "):
        trained(ours.MonaiRoom("1MiB"))
    with er.within("1TiB"):
        pass
