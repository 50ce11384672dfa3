"""Trainings in which no torch.optim.Optimizer says where a step ends: planned all the same, with the same numbers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.run.room import run_of
from tests.torch.helpers import Setup, Training, assert_equal, assert_swapped, mean_square, train, train_within

pytestmark = pytest.mark.long

RATE = 0.05
Update = Callable[[nn.Module], None]


def net() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())])


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p.sub_(RATE * p.grad)
    model.zero_grad()


def by_data(model: nn.Module) -> None:
    """Which leaves the parameter's version as it was."""
    for p in model.parameters():
        assert p.grad is not None
        p.data.add_(p.grad, alpha=-RATE)
        p.grad.zero_()


def new_storages(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.data = p.data - RATE * p.grad
        p.grad = None


def as_lists(model: nn.Module) -> None:
    parameters: list[Tensor] = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    with torch.no_grad():
        torch._foreach_add_(parameters, gradients, alpha=-RATE)  # pyright: ignore[reportPrivateImportUsage]
    model.zero_grad()


def updated_by(update: Update, micro_batches: int = 1) -> Setup:
    def setup() -> Training:
        model, data = net(), torch.randn(128, 32)

        def step(_number: int) -> Tensor:
            total = torch.zeros(())
            for part in data.chunk(micro_batches):
                loss = mean_square(model(part))
                loss.backward()
                total = total + loss.detach()
            update(model)
            return total

        return Training(step, [model])

    return setup


def leaves() -> Training:
    """Weights that are no parameters of a module, with new ones in their places after each step."""
    weights, data = [torch.randn(32, 32).requires_grad_() for _ in range(6)], torch.randn(128, 32)

    def step(_number: int) -> Tensor:
        x = data
        for weight in weights:
            x = torch.tanh(x @ weight)
        loss = mean_square(x)
        loss.backward()
        for n, w in enumerate(weights):
            assert w.grad is not None
            weights[n] = (w - RATE * w.grad).detach().requires_grad_()
        return loss

    return Training(step, tensors=weights)


def closures() -> Training:
    model, data = net(), torch.randn(128, 32)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=1, lr=RATE)

    def step(_number: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(data))
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Training(step, [model], [optimizer])


SETUPS: dict[str, tuple[Setup, float, int]] = {
    "in place": (updated_by(in_place), 0.8, 7),
    "by data": (updated_by(by_data), 0.8, 7),
    "new storages": (updated_by(new_storages), 0.8, 7),
    "as lists": (updated_by(as_lists), 0.8, 7),
    "accumulated": (updated_by(in_place, micro_batches=2), 0.9, 7),
    "no module": (leaves, 0.8, 7),
    "closures": (closures, 0.95, 21),  # three calls of the closure in each step
}


@pytest.fixture(params=[False, True], ids=["alone", "beside others"])
def others(request: pytest.FixtureRequest) -> list[Tensor]:
    """What other trainings of this process left: large, and with gradients of their own."""
    if not request.param:
        return []
    left = [torch.randn(256, 256).requires_grad_() for _ in range(3)]
    for each in left:
        each.grad = torch.randn(256, 256)
    return left


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("name", SETUPS)
def test_a_step_ends_where_parameters_changed_after_a_backward(name: str) -> None:
    # given
    setup, share, steps = SETUPS[name]

    def tight(setup: Setup) -> int:
        needed_bytes = run_of(train_within(setup, steps=7, budget=2**40)[1]).kinds.keep_all_bytes
        gc.collect()
        others_bytes = live_ram_bytes()
        return others_bytes + int((needed_bytes - others_bytes) * share)

    # when: without a warning, such as that no step has ended
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome, room = train_within(setup, steps=7, budget=tight)
    # then
    assert_equal(outcome, train(setup, steps=7))
    assert_swapped(room, steps)
    # what LBFGS makes in its first steps is there in the later ones, and was not planned for
    assert run_of(room).over_bytes == 0 or name == "closures"


def test_parameters_that_change_before_an_optimizer_steps_end_no_step() -> None:
    # given a training that perturbs its parameters before each step, and puts them back
    def setup() -> Training:
        model, data = net(), torch.randn(128, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

        def perturb(size: float) -> None:
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(size)

        def step(_number: int) -> Tensor:
            mean_square(model(data)).backward()
            perturb(0.01)
            optimizer.zero_grad()
            loss = mean_square(model(data))
            loss.backward()
            perturb(-0.01)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(step, [model], [optimizer])

    # when
    outcome, room = train_within(setup, budget=2**40)
    # then
    assert_equal(outcome, train(setup))
    assert len(room.steps) == 5
