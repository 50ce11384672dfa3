"""A rest: nothing of elbowroom is in torch, and whatever is new ends it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

import elbowroom as er
from elbowroom.engine.residence import RamResidence, SoFar
from elbowroom.run.hook_sampling import SURE
from elbowroom.run.resting import BEFORE_REST, LOOKED_AT
from elbowroom.torch_compat.core import top_hooks
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    by_loss,
    mean_square,
    mlp,
    ordinary,
)
from tests.torch.plenty import INPUT, PLENTY, checked, in_plenty, of_rows, with_forward

AWAKE = 1 + SURE + BEFORE_REST
"""The observed step, the checked ones, and those without hooks; then a rest begins."""


def test_in_a_rest_torch_has_nothing_of_ours_while_a_step_goes_on() -> None:
    found: list[tuple[object, ...]] = []

    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found.append((top_hooks(), "state" in vars(torch.optim.Optimizer), len(modules._global_forward_pre_hooks)))
            return x

    def setup() -> Training:
        found.clear()
        return ordinary(nn.Sequential(mlp(), Looking()), INPUT)

    room = in_plenty(setup, steps=AWAKE + 4)

    assert found[AWAKE - 1] == (None, True, 0)
    assert found[AWAKE:] == [(None, False, 0)] * 4
    assert checked(room)[AWAKE:] == [False] * 4
    assert "state" not in vars(torch.optim.Optimizer)


def test_a_forward_pass_without_gradients_between_steps_does_not_end_a_rest() -> None:
    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        if number > AWAKE:
            model.eval()
            with torch.no_grad():
                model(INPUT[:3])
            model.train()
        return model(x)

    room = in_plenty(with_forward(forward), steps=AWAKE + 6)

    assert checked(room)[AWAKE:] == [False] * 6


@pytest.mark.parametrize("keyword", [False, True])
def test_another_shape_is_observed_before_it_runs(keyword: bool) -> None:
    rows = [64] * (AWAKE + 3) + [32] + [64] * 8

    room = in_plenty(of_rows(rows, keyword=keyword), steps=len(rows))

    assert [step.mode for step in room.steps[AWAKE : AWAKE + 4]] == ["keep"] * 3 + ["observe"]
    assert sum(step.mismatches for step in room.steps) == 0
    assert not room.steps[-1].checked


@pytest.mark.parametrize("change", ["mode", "gradient", "module"])
def test_what_is_known_before_a_step_ends_a_rest_before_it(change: str) -> None:
    def setup() -> Training:
        model, other = mlp(), mlp()
        optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])

        def loss(number: int) -> Tensor:
            now, x = model, INPUT.clone()
            if number == AWAKE + 2:
                model.train(mode=change != "mode")
                now, x = other if change == "module" else model, x.requires_grad_(change == "gradient")
            found = now(x)
            model.train()
            return mean_square(found)

        return by_loss(loss, model, optimizer)

    room = in_plenty(setup, steps=AWAKE + 4)

    assert room.steps[AWAKE + 2].checked
    assert not any(checked(room)[AWAKE : AWAKE + 2])


def test_an_op_more_is_seen_when_the_step_ends_and_the_next_one_is_checked() -> None:
    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        found = model(x)
        return found.sin().cos() if number > AWAKE else found

    with pytest.warns(RuntimeWarning, match="saved storage"):
        room = in_plenty(with_forward(forward), steps=AWAKE + 6)

    assert checked(room)[AWAKE : AWAKE + 3] == [False, False, True]
    assert room.steps[AWAKE + 2].mismatches > 0


def test_a_second_optimizer_that_steps_between_two_steps_ends_a_rest() -> None:
    def setup() -> Training:
        model, weight = mlp(), nn.Parameter(torch.ones(8))
        optimizer, other = torch.optim.AdamW(model.parameters()), torch.optim.SGD([weight])

        def loss(number: int) -> Tensor:
            if number == AWAKE + 2:
                weight.grad = torch.ones(8)
                other.step()
            return mean_square(model(INPUT))

        return by_loss(loss, model, optimizer)

    room = in_plenty(setup, steps=AWAKE + 4)

    assert checked(room)[AWAKE : AWAKE + 2] == [False, False]


def test_a_step_that_is_to_be_measured_ends_a_rest() -> None:
    training = ordinary(mlp(), INPUT)
    with er.within(PLENTY, min_size=MIN_SIZE_BYTES) as room:
        for number in range(AWAKE + 3):
            training.step(number)
        assert not room.steps[-1].checked
        room.measure_next_step()
        for number in range(2):
            training.step(number)
        assert room.measured is not None
    assert len(room.steps) == AWAKE + 5


def test_an_error_in_a_rest_leaves_nothing_behind() -> None:
    training = ordinary(mlp(), INPUT)

    def interrupted() -> None:
        with er.within(PLENTY, min_size=MIN_SIZE_BYTES):
            for number in range(AWAKE + 2):
                training.step(number)
            training.modules[0](INPUT)
            raise ValueError("mid-step")

    with pytest.raises(ValueError, match="mid-step"):
        interrupted()

    assert top_hooks() is None
    assert "state" not in vars(torch.optim.Optimizer)
    assert not modules._global_forward_pre_hooks
    training.step(0)


def test_memory_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    # given 3 MiB above the budget from the third step of a rest on: a look comes at one of 16, and at the last one
    steps = [0]
    monkeypatch.setattr(RamResidence, "so_far", lambda *_: SoFar(0, (3 << 20) * (steps[0] > AWAKE + 2)))

    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        steps[0] = number
        return model(x)

    # then the warning blames no step: a budget counts tensors, and what NumPy holds between steps is resident too
    said = r"the process held 3\.0 MiB more than the budget allows since it was last looked at: in a step .*NumPy"
    with pytest.warns(RuntimeWarning, match=said):
        room = in_plenty(with_forward(forward), steps=AWAKE + 2 * LOOKED_AT)

    assert sum(step.mismatches for step in room.steps) == 1


def test_the_figures_of_a_rest_are_there_at_once() -> None:
    training = ordinary(mlp(), INPUT)
    with er.within(PLENTY, min_size=MIN_SIZE_BYTES) as room:
        for number in range(AWAKE + 5):
            training.step(number)
            # then: the step that has just ended is counted, if it had no hooks; else once the next begins
            count = number + (number >= AWAKE - BEFORE_REST)
            assert len(room.steps) == count
            assert f"({count} steps" in room.summary() or number < 2
        assert all(step.step_ns > 0 for step in room.steps)
