"""A small training in which something breaks at a chosen moment, and what was seen of it from outside."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import elbowroom as er
from elbowroom.engine.tiers.disk import DiskTier
from elbowroom.errors import TierError
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, Training, finish, mlp, seeded, tight_budget, train

STEPS = 5
OBSERVED, PLANNED = 0, 3
"""A step in which everything is swapped, and one that follows a plan."""

Moment = Literal["before", "between"]
Break = Callable[[Room], None]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a broken training showed.

    Attributes:
        error: its class.
        text: its message.
        tier: which tier it names; "" where it is no TierError.
        losses: of the steps that ended.
        goes_on_as_plain: whether the training, continued without elbowroom, ends with the numbers of a plain one.
        held_bytes: what the lower tier holds once the graph is gone.
        mode: of the step before the last one that ended, "" where none did.
    """

    error: type[BaseException]
    text: str
    tier: str
    losses: list[Tensor]
    goes_on_as_plain: bool
    held_bytes: int
    mode: str


def setup(at: int = -1, moment: Moment = "before", breaks: Callable[[], None] | None = None) -> Training:
    """Six layers on one batch; 256 x 128 floats are 128 KiB a layer."""
    model, batch = mlp(width=128, depth=6), torch.randn(256, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(i: int) -> Tensor:
        if i == at and moment == "before" and breaks:
            breaks()
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).square().mean()
        if i == at and moment == "between" and breaks:
            breaks()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [model], [optimizer])


@functools.cache
def plain() -> Outcome:
    """The training without elbowroom and without a fault."""
    return train(setup, STEPS)


@functools.cache
def allowed_bytes() -> int:
    """A tight budget, told once.

    What a first capture imports, and the plain outcome, is put out of the garbage collector's sight: every recording
    looks through all it sees, and counts the tensors among it.
    """
    tight_budget(setup)
    plain()
    gc.collect()
    gc.freeze()
    return tight_budget(setup)


def broken(directory: Path, at: int, moment: Moment, breaks: Break, mends: Callable[[], None] | None = None) -> Seen:
    """Train within a tight budget until step `at`, in which something breaks; then go on without elbowroom.

    Args:
        directory: of the spill file.
        at: the step.
        moment: before its forward or between forward and backward.
        breaks: called then.
        mends: called when the error is out.
    """
    rooms: list[Room] = []
    told: list[tuple[type[BaseException], str, str]] = []
    losses: list[Tensor] = []

    def fall() -> None:
        if not told:
            breaks(rooms[0])

    training = seeded(lambda: setup(at, moment, fall))
    try:
        with er.within(allowed_bytes(), spill_dir=directory, min_size=MIN_SIZE_BYTES) as room:
            rooms.append(room)
            losses.extend(training.step(i).clone() for i in range(STEPS))
    except BaseException as error:  # noqa: BLE001 (whatever comes out is looked at; a traceback kept would hold the graph)
        told.append((type(error), str(error), error.tier if isinstance(error, TierError) else ""))
    if mends:
        mends()
    assert told, "nothing broke"
    gc.collect()
    rest = finish(training, STEPS, first=len(losses))
    return Seen(
        error=told[0][0],
        text=told[0][1],
        tier=told[0][2],
        losses=losses,
        goes_on_as_plain=same(plain(), Outcome(losses + rest.losses, rest.state)),
        held_bytes=tier_of(rooms[0]).held_bytes,
        mode=rooms[0].steps[-1].mode if rooms[0].steps else "",
    )


def same(one: Outcome, other: Outcome) -> bool:
    """Whether losses and final weights are the same bits."""
    assert all(math.isfinite(loss.item()) for loss in one.losses)
    losses = [torch.equal(a, b) for a, b in zip(one.losses, other.losses, strict=True)]
    return all(losses) and all(torch.equal(value, other.state[name]) for name, value in one.state.items())


def tier_of(room: Room) -> DiskTier:
    """The disk tier of a room."""
    tier = run_of(room)._executor.tier
    assert isinstance(tier, DiskTier)
    return tier


def settle(room: Room) -> None:
    """Every write so far has ended."""
    run_of(room)._executor.settle()


def take_all_room(room: Room) -> None:
    """Every free page of the spill file is taken, as by saved tensors of other graphs."""
    file = tier_of(room).file
    free = file._ranges._free
    while len(free) > 1:  # the last is what the file has not grown to
        file.reserve(max(length for _, length in free[:-1]))
    if file._size_bytes > free[-1][0]:
        file.reserve(file._size_bytes - free[-1][0])
