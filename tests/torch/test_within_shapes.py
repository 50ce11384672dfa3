"""Steps of several kinds in one room: each is observed and planned for once, and the numbers stay the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from elbowroom.runtime.room import Room
from tests.torch.helpers import Setup, Training, assert_equal, mean_square, mlp, tight_budget, train, train_within


def batches(rows: Sequence[int], call: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x)) -> Setup:
    """A training whose n-th batch has the n-th number of rows, in turn."""

    def setup() -> Training:
        model = Masked()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            count = rows[number % len(rows)]
            loss = mean_square(call(model, torch.linspace(-1, 1, count * 64).view(count, 64)))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    return setup


class Masked(nn.Module):
    """Takes its input by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor, mask: Tensor | None = None, flip: bool = False) -> Tensor:
        found = self.layers(x)
        if mask is not None:
            found = found * mask
        return found.flip(0).sin() if flip else found


def both(setup: Setup, largest: Setup, steps: int) -> Room:
    """Plain and within a budget that is tight for the largest kind of step; the numbers must be the same."""
    plain = train(setup, steps)
    inside, room = train_within(setup, steps, budget=tight_budget(largest))
    assert_equal(inside, plain)
    assert len(room.steps) == steps
    return room


def modes(room: Room) -> list[str]:
    return [step.mode for step in room.steps]


def observed(room: Room) -> int:
    return modes(room).count("observe")


def test_two_shapes_in_turn_are_observed_once_each() -> None:
    # given one shape that must be swapped, and one that must not
    room = both(batches([256, 64]), batches([256]), steps=10)

    assert modes(room)[4:] == ["plan", "keep"] * 3
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_smaller_last_batch_of_every_epoch_is_observed_once() -> None:
    room = both(batches([256, 256, 256, 192]), batches([256]), steps=12)

    assert "observe" not in modes(room)[5:]
    assert observed(room) <= 3
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_shape_that_comes_late_is_observed_then() -> None:
    room = both(batches([200] * 6 + [256] * 4), batches([256]), steps=10)

    assert modes(room)[6] == "observe"
    assert modes(room)[7:] == ["plan"] * 3
    assert room.steps[-1].swapped_back_bytes > 0


@contextmanager
def said_once() -> Iterator[None]:
    """A step that is not what its plan expects is said by one warning, however often it happens."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    ours = [str(warning.message) for warning in said if "elbowroom: saved storage" in str(warning.message)]
    assert len(ours) <= 1, ours


def test_shapes_of_keyword_arguments_are_told_apart_as_the_step_runs() -> None:
    setup = batches([256, 128], lambda model, x: model(x=x))
    with said_once():
        room = both(setup, batches([256]), steps=12)

    assert "observe" not in modes(room)[-4:]
    assert [step.mismatches for step in room.steps[-4:]] == [0] * 4


def test_a_flag_that_changes_the_step_is_told_apart_as_the_step_runs() -> None:
    flags = iter([False, False, True] * 10)
    setup = batches([256], lambda model, x: model(x, flip=next(flags)))

    def fresh() -> Training:
        nonlocal flags
        flags = iter([False, False, True] * 10)
        return setup()

    with said_once():
        room = both(fresh, batches([256]), steps=12)

    assert "observe" not in modes(room)[-3:]
    assert [step.mismatches for step in room.steps[-3:]] == [0] * 3


def test_a_mask_by_keyword_that_grows_gives_the_same_numbers() -> None:
    # given an argument whose shape never comes twice
    widths = iter(range(1, 100))
    setup = batches([256], lambda model, x: model(x, mask=torch.ones(256, 64)[: next(widths) + 2].mean(0)))
    room = both(setup, batches([256]), steps=6)

    assert modes(room)[-1] == "plan"


def test_accumulation_over_a_changing_number_of_batches_gives_the_same_numbers() -> None:
    def setup() -> Training:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            losses = []
            for count in range(1 + number % 3):
                loss = mean_square(model(torch.full((192, 64), 0.1 * count + 0.1)))
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            return torch.stack(losses).sum()

        return Training(step, [model], [optimizer])

    plain = train(setup, 12)
    with said_once():
        inside, room = train_within(setup, 12)

    assert_equal(inside, plain)
    assert len(room.steps) == 12


def test_steps_whose_optimizer_is_skipped_now_and_then_give_the_same_numbers() -> None:
    # as a GradScaler does where a gradient overflowed
    def setup() -> Training:
        model, batch = mlp(), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            if number % 4 != 2:
                optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, 10)
    with said_once():
        inside, _ = train_within(setup, 10)

    assert_equal(inside, plain)


def test_training_and_a_validation_loss_with_gradients_give_the_same_numbers() -> None:
    # a validation that forgets no_grad: its graph is dropped without a backward pass
    def setup() -> Training:
        model, batch = nn.Sequential(mlp(), nn.Dropout(0.2), nn.Sigmoid()), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            optimizer.step()
            model.eval()
            seen = mean_square(model(batch[:100]))
            model.train()
            return torch.stack([loss.detach(), seen.detach()])

        return Training(step, [model], [optimizer])

    plain = train(setup, 6)
    inside, room = train_within(setup, 6)

    assert_equal(inside, plain)
    assert room._executor.tier.held_bytes == 0


@pytest.mark.parametrize("late", [False, True], ids=["at the start", "after a step"])
def test_a_model_that_is_rebuilt_trains_to_the_same_numbers(late: bool) -> None:
    # given a model that grows by a layer
    def setup() -> Training:
        model, batch = mlp(), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            if number == int(late):
                model.append(nn.Linear(64, 64))
                optimizer.add_param_group({"params": model[-1].parameters()})
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, 6)
    with said_once():
        inside, room = train_within(setup, 6)

    assert_equal(inside, plain)
    assert [step.mismatches for step in room.steps[-2:]] == [0, 0]
