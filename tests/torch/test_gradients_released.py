"""Gradients are away again after their part of the optimizer's step, until something frees them: the same numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from elbowroom.run.room import Room
from elbowroom.step.last_step import last_step
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    captured,
    finish,
    mean_square,
    mlp,
    moved_as_planned,
    seeded,
    train,
)
from tests.torch.test_states_away import MAKES, layers

STEPS = 6
GRADIENTS: tuple[Means, ...] = ("swap", "state", "gradient")
PARAMETERS: tuple[Means, ...] = (*GRADIENTS, "parameter")


@pytest.fixture
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])


def all_away(setup: Setup, allow: tuple[Means, ...], steps: int = STEPS, **options: Any) -> tuple[Outcome, Room]:
    """Every storage that may move is away until something uses it."""
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=allow, **options) as room:
        outcome = finish(seeded(setup), steps)
    return outcome, room


def released(room: Room) -> int:
    """The gradients that the last plan has away after their part."""
    assert room.plan is not None
    assert room.trace is not None
    step = last_step(room.trace)
    windows = step.windows_of((swap.storage, swap.out_after_op) for swap in room.plan.swaps)
    return sum(n is not None and n >= len(step.saves) and not step.returns[n] for n in windows)


Loop = Callable[[nn.Sequential, torch.optim.Optimizer, Tensor, int], Tensor]


def zeroed_first(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    optimizer.zero_grad()
    loss = mean_square(model(x))
    loss.backward()
    optimizer.step()
    return loss


def zeroed_last(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    loss = mean_square(model(x))
    loss.backward()
    optimizer.step()
    model.zero_grad()
    return loss


def zeroed_after_forward(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    loss = mean_square(model(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def set_to_none_by_hand(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    for parameter in model.parameters():
        parameter.grad = None
    return zeroed_last(model, optimizer, x, number)


def accumulated(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    optimizer.zero_grad()
    losses = [mean_square(model(micro)) for micro in x.split(2)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    return torch.stack(losses)


def unscaled_by_its_kernel(model: nn.Sequential, optimizer: Any, x: Tensor, number: int) -> Tensor:
    """As a GradScaler has a fused optimizer do it: the kernel writes the gradients, and counts no version."""
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(0.5), torch.tensor(0.0)
    loss = zeroed_first(model, optimizer, x, number)
    del optimizer.grad_scale, optimizer.found_inf
    return loss


FREED: dict[str, Loop] = {
    each.__name__: each
    for each in (
        zeroed_first, zeroed_last, zeroed_after_forward, set_to_none_by_hand, accumulated, unscaled_by_its_kernel,
    )
}  # fmt: skip


def zeroed_in_place(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = mean_square(model(x))
    loss.backward()
    optimizer.step()
    return loss


def zeroed_at_times(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    """Every second step adds to the gradients of the one before."""
    if number % 2 == 0:
        optimizer.zero_grad()
    loss = mean_square(model(x))
    loss.backward()
    optimizer.step()
    return loss


def read_after_the_step(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    loss = zeroed_first(model, optimizer, x, number)
    return torch.stack([loss, *(p.grad.norm() for p in model.parameters() if p.grad is not None)])


def scaled_after_the_step(model: nn.Sequential, optimizer: torch.optim.Optimizer, x: Tensor, number: int) -> Tensor:
    """Something changes the gradients in place, past all versions, and a second step goes by them."""
    loss = zeroed_first(model, optimizer, x, number)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.mul_(0.5)
    optimizer.step()
    return loss


USED: dict[str, Loop] = {
    each.__name__: each for each in (zeroed_in_place, zeroed_at_times, read_after_the_step, scaled_after_the_step)
}


def training(loop: Loop, **options: Any) -> Training:
    model, inputs = mlp(96, 6), torch.randn(4, 96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)

    def step(number: int) -> Tensor:
        return loop(model, optimizer, inputs, number).detach()

    return Training(step, [model], [optimizer])


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("allow", [GRADIENTS, PARAMETERS], ids=["gradients", "parameters too"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", FREED)
def test_a_gradient_is_away_until_it_is_freed_and_is_not_copied_back(
    name: str, fused: bool, allow: tuple[Means, ...]
) -> None:
    if name == unscaled_by_its_kernel.__name__ and not fused:
        pytest.skip("only fused kernels unscale")

    def setup() -> Training:
        return training(FREED[name], fused=fused)

    plain = train(setup, STEPS)

    # when
    inside, room = all_away(setup, allow, measure=True)

    # then
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)
    # six layers, each of which has a part to itself
    assert released(room) == 6
    assert room.measured is not None
    assert room.simulated is not None
    measured = room.measured.peak_allocated_bytes
    assert abs(room.simulated.peak_allocated_bytes - measured) <= 0.01 * measured


@pytest.mark.usefixtures("_all_away")
@pytest.mark.filterwarnings("ignore:elbowroom. a gradient was brought back:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:elbowroom. part 0 of the optimizer's step:RuntimeWarning")
@pytest.mark.parametrize("allow", [GRADIENTS, PARAMETERS], ids=["gradients", "parameters too"])
@pytest.mark.parametrize("name", USED)
def test_a_gradient_that_is_used_after_its_part_has_the_right_bytes(name: str, allow: tuple[Means, ...]) -> None:
    def setup() -> Training:
        return training(USED[name])

    plain = train(setup, 2 * STEPS)
    inside, _ = all_away(setup, allow, 2 * STEPS)
    assert_equal(inside, plain)


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("name", MAKES)
def test_what_optimizers_change_of_gradients_is_not_lost(name: str) -> None:
    """The last gradients are read in the end: those that a part has changed were written again."""

    def setup() -> Training:
        return layers(MAKES[name])

    plain = train(setup, STEPS)
    inside, room = all_away(setup, GRADIENTS)
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)


@pytest.mark.usefixtures("_all_away")
def test_a_gradient_that_its_part_did_not_change_is_written_once() -> None:
    def setup() -> Training:
        return training(zeroed_first)

    _, room = all_away(setup, ("swap", "gradient", "state"))
    assert released(room) == 6
    # per step two states and one gradient of six layers are written, and the activations once; then the last
    # gradients come back, as they are read
    layer = 96 * 96 * 4
    assert 18 * layer <= room.steps[-2].swapped_out_bytes < 18 * layer + 20_000
    assert room.steps[-2].swapped_back_bytes < 18 * layer + 20_000


def test_the_least_budget_needs_no_room_for_all_gradients() -> None:
    def setup() -> Training:
        return training(zeroed_first)

    trace = captured(setup, in_parts=True)
    before = [
        replace(part, storages=tuple(s for s in part.storages if trace.storages[s].category != "gradient"))
        if part.kind == "optimizer"
        else part
        for part in trace.parts
    ]

    def least(trace: er.Trace) -> int:
        with pytest.raises(er.Infeasible) as caught:
            er.plan(trace, er.Machine.here(device="cpu"), 1, "on_demand", MIN_SIZE_BYTES, allow=GRADIENTS)
        return caught.value.least_feasible_bytes

    # of six gradients, one is left with its part, and one with the part of the layer before it
    assert least(trace) <= least(replace(trace, parts=tuple(before))) - 4 * 96 * 96 * 4
