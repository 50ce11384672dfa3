"""The second start of a training: its plan is that of the first one, and the summary says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elbowroom.run.room import Room
from tests.torch.helpers import Setup, Training, assert_equal, mlp, ordinary, tight_budget, train, train_within

INPUT = torch.linspace(-1, 1, 64 * 64).view(64, 64)
SAID = "the plan is that of an earlier start of this training (`elbowroom cache`)"


def started(setup: Setup, budget_bytes: int) -> Room:
    """A training within a budget, with the numbers of the plain one."""
    outcome, room = train_within(setup, 6, budget_bytes, allow=("swap",))
    assert_equal(train(setup, 6), outcome)
    return room


def test_the_summary_says_that_a_plan_is_of_an_earlier_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ELBOWROOM_KEEPS_PLANS", raising=False)

    def setup() -> Training:
        return ordinary(mlp(), INPUT)

    budget_bytes = tight_budget(setup)
    first, second = started(setup, budget_bytes), started(setup, budget_bytes)

    assert SAID not in first.summary()
    assert SAID in second.summary()
    assert second.plan is not None
    assert first.plan is not None
    assert second.plan.swaps == first.plan.swaps
