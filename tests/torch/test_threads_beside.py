"""Trainings in threads beside a run: they go on as without it, and the run as without them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import elbowroom as er
from tests.torch.helpers import Training, assert_equal, finish, mlp, ordinary, seeded, tight_budget, train

STEPS = 4


def usual() -> Training:
    return ordinary(mlp(), torch.randn(256, 64))


def beside(training: Training, found: list[Any], *, steps: int = STEPS) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(finish(training, steps)))
    thread.start()
    return thread


def test_a_training_in_a_thread_has_its_numbers_and_none_of_the_budget() -> None:
    plain, found = train(usual, STEPS), list[Any]()
    budget = tight_budget(usual)

    with pytest.warns(RuntimeWarning, match="another thread"), er.within(budget) as room:
        beside(seeded(usual), found).join()

    assert_equal(found[0], plain)
    assert room.steps == []


@pytest.mark.filterwarnings("ignore:.*another thread:RuntimeWarning")
def test_a_step_in_a_thread_is_no_step_of_the_run() -> None:
    # given a run, and a training in a thread whose optimizer is of the same class
    plain, found = train(usual, STEPS), list[Any]()
    budget, mine, other = tight_budget(usual), seeded(usual), seeded(usual)

    # when the other one trains between two steps of the run's
    with er.within(budget) as room:
        finish(mine, 2)
        beside(other, found).join()
        inside = finish(mine, STEPS, 2)

    # then both have the numbers that they have alone
    assert_equal(found[0], plain)
    assert len(room.steps) == STEPS
    assert [torch.equal(one, two) for one, two in zip(inside.losses, plain.losses[2:], strict=True)] == [True] * 2
