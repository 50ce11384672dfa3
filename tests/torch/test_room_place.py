"""`room.place`: a model that was there before leaves, trains with equal bits, and what cannot be placed is said."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.errors import UsageError
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, Training, assert_equal, finish, mlp, ordinary, seeded, train

STEPS = 5
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])


def plenty(allow: tuple[Means, ...] = EVERYTHING) -> Any:
    gc.collect()
    return er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=allow)


def adapters() -> Training:
    model = mlp(96, 6)
    for number, layer in enumerate(model):
        layer.requires_grad_(number >= 8)
    return ordinary(model, torch.randn(4, 96))


def layers() -> Training:
    return ordinary(mlp(96, 6), torch.randn(4, 96))


def large(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.nelement() * 4 >= MIN_SIZE_BYTES]


@pytest.mark.parametrize("setup", [layers, adapters])
def test_a_model_that_was_there_before_is_away_once_it_is_placed_and_trains_with_equal_bits(setup: Any) -> None:
    plain = train(setup, STEPS)
    training = seeded(setup)
    (model,) = training.modules
    # when
    with plenty() as room:
        placed = room.place(model)
        away = [RAW_STORAGE(each).nbytes() for each in large(model)]
        inside = finish(training, STEPS)
    # then
    assert placed is model
    assert away == [0] * 6
    assert_equal(inside, plain)
    assert all(RAW_STORAGE(each).nbytes() for each in model.parameters())


def test_without_parameters_among_allow_all_stay() -> None:
    plain = train(layers, STEPS)
    training = seeded(layers)
    with plenty(allow=("swap", "state")) as room:
        room.place(training.modules[0])
        assert all(RAW_STORAGE(each).nbytes() for each in training.modules[0].parameters())
        inside = finish(training, STEPS)
    assert_equal(inside, plain)


def test_an_array_on_a_frozen_parameter_keeps_its_bytes() -> None:
    model = nn.Linear(96, 96).requires_grad_(False)
    array = model.weight.numpy()
    before = array.copy()
    with plenty() as room:
        room.place(model)
        assert RAW_STORAGE(model.weight).nbytes() == 96 * 96 * 4
        assert (array == before).all()


def test_a_model_may_be_placed_again_between_two_steps() -> None:
    plain = train(layers, STEPS)
    training = seeded(layers)
    with plenty() as room:
        losses: list[Tensor] = []
        for number in range(STEPS):
            room.place(training.modules[0])
            losses.append(training.step(number).detach().clone())
        inside = Outcome(losses, training.state())
    assert_equal(inside, plain)


def test_what_cannot_be_placed_is_said() -> None:
    with torch.device("meta"):
        bare = nn.Linear(8, 8)
    with plenty() as room:
        with pytest.raises(UsageError, match=r"place: given dict; allowed is a torch\.nn\.Module"):
            room.place({})
        with pytest.raises(UsageError, match=r"2 parameters on the meta device, such as 'weight'.*to_empty"):
            room.place(bare)


def test_a_model_is_not_placed_in_the_middle_of_a_step() -> None:
    model, inputs = mlp(96, 2), torch.randn(4, 96)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with plenty() as room:
        loss = model(inputs).sum()
        with pytest.raises(UsageError, match="in the middle of a step; allowed is between two steps"):
            room.place(model)
        loss.backward()
        optimizer.step()
        room.place(model)
