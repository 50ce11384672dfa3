"""Trainings within a budget that is never reached."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from elbowroom.run.room import Room
from tests.torch.helpers import Setup, Training, by_loss, mean_square, mlp, same_within

PLENTY = 8 << 30
INPUT = torch.linspace(-1, 1, 64 * 64).view(64, 64)

Forward = Callable[[nn.Module, Tensor, int], Tensor]


class Named(nn.Module):
    """Layers whose input may be given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def with_forward(forward: Forward) -> Setup:
    """A training whose forward pass of each step is given."""

    def setup() -> Training:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        return by_loss(lambda number: mean_square(forward(model, INPUT, number)), model, optimizer)

    return setup


def of_rows(rows: list[int], *, keyword: bool) -> Setup:
    """A training with a number of rows of input for each step, given by name or by place."""

    def setup() -> Training:
        model = Named()
        optimizer = torch.optim.AdamW(model.parameters())

        def loss(number: int) -> Tensor:
            x = INPUT[: rows[number]]
            return mean_square(model(x=x) if keyword else model(x))

        return by_loss(loss, model, optimizer)

    return setup


def in_plenty(setup: Setup, steps: int) -> Room:
    """Plain and within a budget that is never reached; the numbers must be the same."""
    room = same_within(setup, steps, PLENTY)
    assert len(room.steps) == steps
    return room


def checked(room: Room) -> list[bool]:
    """Whether each step was checked."""
    return [step.checked for step in room.steps]
