"""Parameters leave as they come to the device: the same numbers, however a model is made and filled."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import MIN_SIZE_BYTES, Training, assert_equal, finish, mean_square, mlp, seeded, train

STEPS = 6
PARAMETERS: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = nn.Module._apply
    yield
    assert nn.Module._apply is before


def made() -> nn.Module:
    return mlp(96, 6)


def moved() -> nn.Module:
    """Each parameter gets another storage, as it does on another device."""
    return mlp(96, 6).double().float()


def filled() -> nn.Module:
    model, other = mlp(96, 6), mlp(96, 6)
    model.load_state_dict(other.state_dict())
    return model


def from_meta() -> nn.Module:
    other = mlp(96, 6)
    with torch.device("meta"):
        model = mlp(96, 6)
    model.to_empty(device="cpu").load_state_dict(other.state_dict())
    return model


def tied() -> nn.Module:
    model: Any = mlp(96, 6)
    model[2].weight = model[0].weight
    return model.double().float()


def copied() -> nn.Module:
    return copy.deepcopy(mlp(96, 6))


def _filled(put: Callable[[nn.Module, str, Tensor], None]) -> nn.Module:
    """A model without bytes that gets one tensor after the other from a file, as loaders of transformers do it."""
    other = mlp(96, 6).state_dict()
    with torch.device("meta"):
        model = mlp(96, 6)
    for name, value in other.items():
        module, _, last = name.rpartition(".")
        tensor = value.clone()  # the loader has it until the next one
        put(model.get_submodule(module), last, tensor)
    return model


def set_by_loader() -> nn.Module:
    return _filled(lambda module, name, tensor: setattr(module, name, nn.Parameter(tensor)))


def assigned_by_loader() -> nn.Module:
    def assigned(module: nn.Module, name: str, tensor: Tensor) -> None:
        module.load_state_dict({name: tensor}, strict=False, assign=True)

    return _filled(assigned)


def put_by_loader() -> nn.Module:
    """As Accelerate puts them, past the module's own methods."""

    def put(module: nn.Module, name: str, tensor: Tensor) -> None:
        module._parameters[name] = nn.Parameter(tensor)

    return _filled(put)


WAYS: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (
        made, moved, filled, from_meta, tied, copied, set_by_loader, assigned_by_loader, put_by_loader,
    )
}  # fmt: skip
UNSEEN = {"copied", "put_by_loader"}
"""What is seen once a step begins only."""


def training(way: Callable[[], nn.Module]) -> Training:
    model, inputs = way(), torch.randn(4, 96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [model], [optimizer])


@pytest.mark.parametrize("planner", [None, "on_demand"])
@pytest.mark.parametrize("name", WAYS)
def test_a_model_that_is_made_in_the_room_trains_as_ever(
    name: str, planner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])  # no plan keeps all that it could keep
    plain = train(lambda: training(WAYS[name]), STEPS)
    gc.collect()
    # when
    options: Any = {} if planner is None else {"planner": planner}
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, allow=PARAMETERS, **options) as room:
        run = seeded(lambda: training(WAYS[name]))
        (model,) = run.modules
        large = [p for p in model.parameters() if p.nelement() * p.element_size() >= MIN_SIZE_BYTES]
        away = sum(RAW_STORAGE(p).nbytes() == 0 for p in large)
        inside = finish(run, STEPS)
    # then all but the last few had left before the first step
    assert away >= len(large) - 2 or name in UNSEEN
    assert_equal(inside, plain)
    assert len(room.steps) == STEPS
    assert all(RAW_STORAGE(p).nbytes() for p in model.parameters())
