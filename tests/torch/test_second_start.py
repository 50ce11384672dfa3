"""The second start of a training: where its plan is that of the first one, the summary says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elbowroom.planners.budget.run_budget import Course, CourseRequest, course_within
from elbowroom.run import step_planning
from tests.torch.helpers import Training, mlp, ordinary, train_within

INPUT = torch.linspace(-1, 1, 64 * 64).view(64, 64)
SAID = "the plan is that of an earlier start of this training (`elbowroom cache`)"


def setup() -> Training:
    return ordinary(mlp(), INPUT)


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_summary_says_that_a_plan_is_of_an_earlier_start(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_or_planned(request: CourseRequest) -> Course:
        return replace(course_within(request), is_kept=is_kept)

    monkeypatch.setattr(step_planning, "kept_or_planned", kept_or_planned)

    _, room = train_within(setup, 6, allow=("swap",))

    assert room.plan is not None
    assert room.plan.swaps
    assert (SAID in room.summary()) == is_kept
