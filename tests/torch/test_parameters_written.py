"""A trained parameter is written to the tier once a step, and never left there with bytes of before a change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import custom_op

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from elbowroom.run.room import Room
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    by_loss,
    finish,
    mean_square,
    mlp,
    ordinary,
    seeded,
    train,
)

STEPS, WIDTH, DEPTH = 6, 96, 6
WEIGHT_BYTES = 4 * WIDTH * WIDTH
ROWS = 2
"""So few that what is saved is below the least size."""
ALLOW: tuple[Means, ...] = ("state", "parameter")


@custom_op("elbowroom_written::less", mutates_args=())
def less(weight: Tensor, amount: Tensor) -> Tensor:
    """Change a weight, without saying so."""
    weight.data.sub_(amount)
    return torch.zeros(1)


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])


def away(setup: Setup) -> tuple[Outcome, Room]:
    """Parameters alone move: the optimizer has no states."""
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=ALLOW) as room:
        outcome = finish(seeded(setup), STEPS)
    return outcome, room


def descending() -> Training:
    model = mlp(WIDTH, DEPTH)
    return ordinary(model, torch.randn(ROWS, WIDTH), optimizer=torch.optim.SGD(model.parameters(), lr=1e-2))


def test_a_trained_parameter_is_written_once_a_step() -> None:
    plain = train(descending, STEPS)
    # when each weight leaves after forward and after backward, in the first step, which waits for its writes
    inside, room = away(descending)
    # then only what the optimizer has changed is written; the last weight is still there as the step ends
    assert_equal(inside, plain)
    step = room.steps[0]
    assert step.mode == "observe"
    assert step.swapped_out_bytes == (DEPTH - 1) * WEIGHT_BYTES
    # forward, the optimizer, and backward: it needs no weight of the first layer, and the last one is still there
    assert step.swapped_back_bytes == (3 * DEPTH - 2) * WEIGHT_BYTES
    assert room.steps[-1].mode == "plan"


class Undeclared(torch.optim.Optimizer):
    """Changes weights by an operator that does not say so."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:
        for each in self.param_groups[0]["params"]:
            less(each, 0.01 * each.grad)


def undeclared_optimizer() -> Training:
    model = mlp(WIDTH, DEPTH)
    return ordinary(model, torch.randn(ROWS, WIDTH), optimizer=Undeclared(model.parameters()))


def undeclared_in_forward() -> Training:
    """Each forward takes something of a weight past its version, by an operator that does not say so."""
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(ROWS, WIDTH)

    def loss(number: int) -> Tensor:
        layer: Any = model[2 * (number % DEPTH)]
        with torch.no_grad():
            less(layer.weight, torch.full((), 1e-2))
        return mean_square(model(inputs))

    return by_loss(loss, model, torch.optim.SGD(model.parameters(), lr=1e-2))


def data_in_forward() -> Training:
    """A hook halves a weight through `.data`, which does not count its version, after it was used."""
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(ROWS, WIDTH)

    def halved(module: nn.Module, _inputs: Any, _output: Any) -> None:
        weight: Any = module.weight
        weight.data.mul_(0.5)

    model[0].register_forward_hook(halved)
    return by_loss(lambda _: mean_square(model(inputs)), model, torch.optim.SGD(model.parameters(), lr=1e-2))


def between_steps() -> Training:
    """Weights change between steps, through `.data` and as they are copied in."""
    training = descending()
    (model,) = training.modules

    def step(number: int) -> Tensor:
        loss = bare(number)
        with torch.no_grad():
            for each in model.parameters():
                each.data.add_(1e-3)
            model[0].weight.copy_(model[0].weight * 0.9)
        return loss

    bare, training.step = training.step, step
    return training


def evaluated() -> Training:
    """A forward without gradients between steps uses weights that do not change."""
    training = descending()
    (model,), inputs = training.modules, torch.randn(ROWS, WIDTH)

    def step(number: int) -> Tensor:
        loss = bare(number)
        with torch.no_grad():
            return torch.stack([loss, mean_square(model(inputs))])

    bare, training.step = training.step, step
    return training


CHANGES: list[Callable[[], Training]] = [
    undeclared_optimizer, undeclared_in_forward, data_in_forward, between_steps, evaluated,
]  # fmt: skip


@pytest.mark.parametrize("setup", CHANGES, ids=lambda setup: setup.__name__)
def test_what_changes_a_weight_is_never_lost(setup: Setup) -> None:
    plain = train(setup, STEPS)
    # when
    inside, room = away(setup)
    # then
    assert_equal(inside, plain)
    assert room.steps[-1].swapped_out_bytes > 0
