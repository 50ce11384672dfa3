"""Trainings in which every storage that may be swapped is, and whether their numbers are those of plain ones.

Swaps come back on demand: all of them are read from the disk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from torch import Tensor

import elbowroom as er
from tests.torch.helpers import Outcome, Setup, assert_equal, finish, same_bits, seeded, train

STEPS = 4
MIN_SIZE_BYTES = 1
UNLIMITED_BYTES = 2**50
WRITES_END_S = 0.004
"""A training sleeps so long between forward and backward, so that what is written is gone when it is read back."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What a training did when all that may move was swapped.

    Attributes:
        planned: swaps of the plan.
        swapped_bytes: moved out in its last step.
        mismatches: saved storages that were not those of the trace.
    """

    planned: int
    swapped_bytes: int
    mismatches: int


def train_swapping_all(setup: Setup) -> Forced:
    """Train plain and with every swap that is allowed, and compare every number bit by bit.

    A training that differs from itself when it is run twice is skipped: nothing can be said about it.
    """
    plain = train(setup, STEPS)
    if not _same(plain, train(setup, STEPS)):
        pytest.skip("plain training, run twice, gives two results")
    gc.collect()
    trace = er.capture(lambda: _counted(setup), steps=2, min_size_bytes=MIN_SIZE_BYTES)
    machine = er.Machine.here(device="cpu")
    plan = er.plan(trace, machine, UNLIMITED_BYTES, planner="swap_all", min_size_bytes=MIN_SIZE_BYTES)
    read_at = {save.storage: save.read_at for save in trace.saves}
    on_demand = (
        replace(each, back_before_op=min(read_at[each.storage], default=each.back_before_op)) for each in plan.swaps
    )
    plan = replace(plan, swaps=tuple(on_demand))
    gc.collect()
    with er.within(plan=plan, min_size_bytes=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(setup), STEPS)
    assert_equal(inside, plain)
    swapped_bytes, mismatches = room.steps[-1].swapped_out_bytes, sum(step.mismatches for step in room.steps)
    return Forced(planned=len(plan.swaps), swapped_bytes=swapped_bytes, mismatches=mismatches)


def _same(one: Outcome, other: Outcome) -> bool:
    pairs = [*zip(one.losses, other.losses, strict=True), *((one.state[name], other.state[name]) for name in one.state)]
    return all(same_bits(mine, theirs) for mine, theirs in pairs)


def _counted(setup: Setup) -> Callable[[], Tensor]:
    training, steps = seeded(setup), iter(range(STEPS))
    return lambda: training.step(next(steps))
