"""Trainings of small storages, with no least size given: it follows the budget in a capture, a plan and a run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.run.room import run_of
from elbowroom.step.least_size import least_size
from elbowroom.units import format_bytes
from tests.torch.helpers import (
    Training,
    assert_equal,
    assert_swapped,
    finish,
    ordinary,
    seeded,
    train,
    train_within,
)

ROWS, WIDTH, DEPTH = 256, 64, 30
ACTIVATION_BYTES = 4 * ROWS * WIDTH


def small() -> Training:
    """All that it saves is of 64 KiB (256 rows of 64 numbers of 4 bytes) or less."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]
    return ordinary(nn.Sequential(*layers), torch.randn(ROWS, WIDTH))


def captured() -> er.Trace:
    """With no least size given."""
    gc.collect()

    def counted() -> Callable[[], Tensor]:
        training, numbers = seeded(small), iter(range(3))
        return lambda: training.step(next(numbers))

    return er.capture(counted)


def test_a_capture_is_planned_and_the_plan_is_followed() -> None:
    # given half of what it saves beside what lies there all the time
    trace, here = captured(), er.Machine.here(device="cpu")
    peak_bytes = er.simulate(trace, here).peak_allocated_bytes
    budget = peak_bytes - DEPTH // 2 * ACTIVATION_BYTES
    made = replace(er.plan(trace, here, budget - 4096, "swap_greedy"), budget_bytes=budget)  # losses are collected
    # when
    with er.within(plan=made) as room:
        inside = finish(seeded(small), 5)
    # then
    assert_equal(inside, train(small, 5))
    assert_swapped(room)
    assert run_of(room).min_size_bytes == least_size(budget) < ACTIVATION_BYTES
    assert f"Storages of {format_bytes(run_of(room).min_size_bytes)} or more may move" in room.summary()


def unheard() -> Training:
    """The same, with steps that return no numbers: a list of losses would grow from the refused step on."""
    training = small()
    bare = training.step

    def step(number: int) -> Tensor:
        bare(number)
        return torch.empty(0)

    training.step = step
    return training


def refused_at(budget_bytes: int) -> int:
    """What is then named as the least. The error itself would keep the frames of the training alive."""
    try:
        train_within(unheard, budget=budget_bytes, min_size=None)
    except er.Infeasible as problem:
        return problem.least_feasible_bytes
    raise AssertionError("a training fits into less than the least")


def test_the_least_that_is_named_is_met_with_its_own_least_size() -> None:
    # given 200 MiB that no plan moves: with a budget of 1 byte 4 KiB may move, with the least that is named 48 KiB
    beside = torch.zeros(200 * 2**20, dtype=torch.uint8)
    assert least_size(1) < ACTIVATION_BYTES / 2 < least_size(beside.nbytes)
    # when
    named = refused_at(1)
    # then
    assert named > beside.nbytes
    outcome, room = train_within(unheard, budget=named, min_size=None)
    assert_equal(outcome, train(unheard))
    assert run_of(room).min_size_bytes == least_size(named)
    assert run_of(room).held_bytes <= named
