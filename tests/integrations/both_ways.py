"""One training of a library, plain and with its callback, and what came out of each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elbowroom.errors import Infeasible
from elbowroom.integrations.room_switch import RoomSwitch
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal

PLENTY = 2**40
SHARE = 0.6
"""Where a budget lies between the least one that can be met and what keeping everything takes."""

Train = Callable[[Any], Outcome]
"""Trains with a callback, or plain with None. Seeds come first, so that each call does the same."""


class Block(nn.Module):
    """A block whose activations take more than its weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(x)))


def blocks(width: int = 32, depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*[Block(width) for _ in range(depth)])


@cache
def rows(count: int, width: int = 32, seed: int = 1) -> Tensor:
    """The same tensor for each training, so that none is charged with the rows of another."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def outcome(losses: Iterable[Any], model: nn.Module) -> Outcome:
    """What a library said of each step, as exact numbers, and the weights."""
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Outcome([torch.tensor(float(each), dtype=torch.float64) for each in losses], state)


def alone(train: Train, callback: Any) -> Outcome:
    """Train once what the training before left is gone: trainers refer to themselves."""
    gc.collect()
    return train(callback)


class Around:
    """A room around a loop."""

    def __init__(self, budget: int, **options: Any) -> None:
        self._switch = RoomSwitch(budget, options)  # pyright: ignore[reportArgumentType]

    @property
    def room(self) -> Room | None:
        return self._switch.room

    def __enter__(self) -> None:
        self._switch.open()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._switch.close(error)


def around(train: Callable[[], Outcome]) -> Train:
    """A loop as a training: inside the room, or plain."""

    def trained(room: Around | None) -> Outcome:
        if room is None:
            return train()
        with room:
            return train()

    return trained


def tight(train: Train, made: Callable[..., Any], share: float = SHARE, **options: Any) -> int:
    """A budget that keeping everything does not meet, and a plan does."""
    free, none = made(PLENTY, min_size=MIN_SIZE_BYTES, **options), made(1, min_size=MIN_SIZE_BYTES, **options)
    alone(train, free)
    keep_all_bytes = run_of(free.room).kinds.keep_all_bytes
    del free
    with pytest.raises(Infeasible) as refused:
        alone(train, none)
    if hasattr(none, "close"):
        none.close()
    least_bytes = refused.value.least_feasible_bytes
    assert least_bytes is not None
    return least_bytes + int(share * (keep_all_bytes - least_bytes))


def same_within(
    train: Train, made: Callable[..., Any], share: float = SHARE, *, over: bool = False, **options: Any
) -> Room:
    """Train plain and within a tight budget, and return the room. No number differs, and the budget is held.

    Args:
        train: the training.
        made: makes the callback from a budget and options of `elbowroom.within`.
        share: see `SHARE`.
        over: whether observed steps may hold more than the budget. What a planned one holds is then measured.
        options: further options of `elbowroom.within`.
    """
    plain = alone(train, None)
    budget = tight(train, made, share, **options)
    callback = made(budget, min_size=MIN_SIZE_BYTES, measure=over, **options)
    assert_equal(alone(train, callback), plain)
    room = callback.room
    planned = [step for step in room.steps if step.mode == "plan"]  # a last batch may be small, and fit
    assert planned, room.summary()
    assert planned[-1].swapped_out_bytes > 0
    assert sum(step.mismatches for step in room.steps) == 0
    if over:
        measured = run_of(room)._measured  # of whichever kind of step it was: `room.measured` is that of the last kind
        assert measured is not None
        assert measured[-1].peak_allocated_bytes <= budget
    else:
        assert run_of(room).over_bytes == 0
    return room
