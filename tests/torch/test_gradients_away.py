"""Gradients are away between backward and the optimizer's step: the same numbers, whoever asks for them in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.run.room import Room
from elbowroom.step.last_step import last_step
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    assert_follows,
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
STATES: tuple[Means, ...] = ("swap", "state")


def least_of(trace: er.Trace, allow: tuple[Means, ...] = (*STATES, "gradient")) -> int:
    """Of what a plan for this computer can do."""
    with pytest.raises(er.Infeasible) as caught:
        er.plan(trace, er.Machine.here(device="cpu"), 1, "swap_states", MIN_SIZE_BYTES, allow=allow)
    return caught.value.least_feasible_bytes


def within_gradients(
    setup: Callable[[], Training], budget: int, steps: int = STEPS, **options: Any
) -> tuple[Any, Room]:
    options.setdefault("allow", (*STATES, "gradient"))
    with er.within(budget, min_size=MIN_SIZE_BYTES, **options) as room:
        outcome = finish(seeded(setup), steps)
    return outcome, room


@pytest.mark.parametrize("name", ["Adam", "AdamW foreach", "SGD momentum"])
def test_steps_are_bit_equal_and_peak_where_simulated(name: str) -> None:
    def setup() -> Training:
        return layers(MAKES[name])

    # given hardly more than what a step needs with all states and gradients away
    plain = train(setup, STEPS)
    budget = int(1.02 * least_of(captured(setup, in_parts=True)))

    # when
    inside, room = within_gradients(setup, budget, measure=True)

    # then
    assert_equal(inside, plain)
    assert moved_as_planned(room) >= {"optimizer_state", "gradient"}
    assert room.measured is not None
    assert room.simulated is not None
    simulated, measured = room.simulated.peak_allocated_bytes, room.measured.peak_allocated_bytes
    assert measured <= budget
    assert abs(simulated - measured) <= 0.01 * measured


def heavy_at_the_end_of_backward(device: str = "cpu", unused: nn.Parameter | None = None) -> Training:
    """The layer that comes last in backward has 500 times the rows of the others; `unused` gets no gradient."""
    first, model, inputs = nn.Linear(96, 96).to(device), mlp(96, 8).to(device), torch.randn(4, 500, 96, device=device)
    others = [] if unused is None else [unused]
    optimizer = torch.optim.AdamW([*first.parameters(), *model.parameters(), *others], lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = mean_square(model(first(inputs).relu().mean(1)))
        for each in others:
            loss = loss + NoGradient.apply(each).sum()  # pyright: ignore[reportOptionalMemberAccess]
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [first, model], [optimizer])


def leasts(setup: Setup) -> tuple[int, int]:
    """The least budget, and that of the same trace where it names no gradients: below it, gradients have to move."""
    trace = captured(setup, in_parts=True)
    states = [part for part in trace.parts if part.kind == "optimizer"]
    return least_of(trace), least_of(replace(trace, parts=tuple(states)))


def test_a_budget_that_states_cannot_meet_is_met_by_gradients() -> None:
    setup = heavy_at_the_end_of_backward

    # given
    plain = train(setup, STEPS)
    least, without = leasts(setup)
    assert least < 0.95 * without
    budget = (least + without) // 2

    # when gradients may not move
    with pytest.raises(er.Infeasible):
        within_gradients(setup, budget, 4, allow=STATES)

    # then gradients make the room
    inside, room = within_gradients(setup, budget)
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)


def test_a_plan_with_gradients_made_from_a_captured_trace_is_carried_out() -> None:
    def setup() -> Training:
        return layers(MAKES["Adam"])

    plain = train(setup, STEPS)
    trace = captured(setup, in_parts=True)
    step = last_step(trace)
    # eight layers of 96 x 96 weights; the biases are smaller than what may move
    assert len(step.accumulations) == 8
    here = er.Machine.here(device="cpu")
    allow: tuple[Means, ...] = (*STATES, "gradient")
    made = er.plan(trace, here, int(1.02 * least_of(trace)), "swap_states", MIN_SIZE_BYTES, allow=allow)

    # when
    with er.within(plan=made, min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(setup), STEPS)

    # then
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)
    assert_follows(room, made)


def micro_steps(device: str = "cpu", before_step: Callable[[nn.Module], Any] | None = None) -> Training:
    """Three to a step, with something between them and the optimizer."""
    model, inputs = mlp(96, 8).to(device), torch.randn(3, 4, 96, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        for micro in inputs:
            loss = mean_square(model(micro))
            loss.backward()
        if before_step is not None:
            before_step(model)
        optimizer.step()
        return loss.detach()

    return Training(step, [model], [optimizer])


def test_gradients_leave_between_the_micro_steps_that_add_to_them() -> None:
    plain = train(micro_steps, STEPS)
    trace = captured(micro_steps, in_parts=True)
    # three micro-steps of eight layers
    assert len(last_step(trace).accumulations) == 24

    # when
    inside, room = within_gradients(micro_steps, int(1.02 * least_of(trace)))

    # then
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)


seen: list[Tensor] = []


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    optimizer.step()


def looked_at_at_times(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    if number == 4:
        seen.extend(p.grad.norm() for p in model.parameters() if p.grad is not None)
    optimizer.step()


def not_stepped_at_times(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    if number != 3:
        optimizer.step()


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def replaced(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for parameter in model.parameters():
        parameter.grad = None if parameter.grad is None else parameter.grad * 0.5
    optimizer.step()


Update = Callable[[nn.Module, torch.optim.Optimizer, int], None]


@pytest.mark.parametrize("update", [clipped, looked_at_at_times, not_stepped_at_times, scaled, replaced])
@pytest.mark.parametrize("to_none", [True, False])
def test_whoever_asks_for_a_gradient_finds_it_whole(update: Update, to_none: bool) -> None:
    def setup() -> Training:
        model, inputs = mlp(96, 8), torch.randn(4, 96)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(number: int) -> Tensor:
            optimizer.zero_grad(set_to_none=to_none)
            loss = mean_square(model(inputs))
            loss.backward()
            update(model, optimizer, number)
            return loss.detach()

        return Training(step, [model], [optimizer])

    seen.clear()
    plain = train(setup, STEPS)
    expected = list(seen)
    unforeseen = update in (looked_at_at_times, not_stepped_at_times)
    # given for those so little that gradients have to move, whatever the times
    budget = int((1.0 if unforeseen else 1.1) * least_of(captured(setup, in_parts=True)))
    seen.clear()

    # when
    with pytest.warns(RuntimeWarning, match="elbowroom") if unforeseen else nullcontext():
        inside, room = within_gradients(setup, budget)

    # then
    assert_equal(inside, plain)
    assert room.steps[-1].swapped_out_bytes > 0
    assert len(seen) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_a_gradient_that_a_hook_keeps_stays_on_the_device() -> None:
    kept: list[Tensor] = []

    def setup() -> Training:
        training = layers(MAKES["Adam"])
        weight = next(training.modules[0].parameters())
        weight.register_hook(kept.append)
        return training

    plain = train(setup, STEPS)
    expected = [each.clone() for each in kept]
    kept.clear()
    budget = int(1.2 * least_of(captured(setup, in_parts=True)))
    kept.clear()

    # when
    inside, _ = within_gradients(setup, budget)

    # then
    assert_equal(inside, plain)
    assert len(kept) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(kept, expected, strict=True))


class NoGradient(torch.autograd.Function):
    """What it is given has no gradient from it, which autograd hands on as None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def test_a_parameter_whose_gradient_is_none_changes_nothing() -> None:
    # given a budget for which gradients have to move
    def setup() -> Training:
        return heavy_at_the_end_of_backward(unused=nn.Parameter(torch.randn(96, 96)))

    plain = train(setup, STEPS)
    least, without = leasts(setup)
    assert least < 0.95 * without
    # when
    inside, room = within_gradients(setup, (least + without) // 2)
    # then
    assert_equal(inside, plain)
    assert "gradient" in moved_as_planned(room)


def test_nothing_of_torch_is_changed_once_the_room_is_closed() -> None:
    def setup() -> Training:
        return layers(MAKES["Adam"])

    budget = int(1.02 * least_of(captured(setup, in_parts=True)))

    # when
    training = seeded(setup)
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=(*STATES, "gradient")) as room:
        finish(training, 4)

    # then
    assert "gradient" in moved_as_planned(room)
    assert "grad" not in vars(nn.Parameter)
    for parameter in training.modules[0].parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
        assert parameter.grad is not None
        assert parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
