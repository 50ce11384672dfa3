"""A budget at or above the least one is met, although blocks that fit below a limit need not fit below a larger one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.capture.steady import as_run
from elbowroom.errors import Infeasible
from elbowroom.planners import any_recompute, asking
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.remedies import restricted
from elbowroom.planners.budget.run_budget import CourseRequest, course_within, page_bytes
from elbowroom.run.options import asked
from elbowroom.simulate.repeated_steps import early_waits, fits_below
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, need, tiers_of_plan
from elbowroom.units import Budget
from tests.fakecuda.within_models import MODELS

MIB = 2**20
KNOBS: dict[str, Any] = {"allow": ("swap", "state", "gradient"), "planner": None, "options": {}}


@pytest.fixture(scope="module")
def request_of_plane_net() -> CourseRequest:
    torch.manual_seed(0)
    # segments of a fixed size, as a run takes them where pages hold more
    machine = replace(er.Machine.of("h100-sxm"), allocator="large_segment_size_mb:12")
    trace = er.capture(MODELS["plane net"], machine=machine, steps=3, in_parts=True, min_size=37_000)
    trace = restricted(as_run(trace, 37_000), KNOBS["allow"])
    budget = below_device(machine, Budget()).on_device(MIB)
    knobs = asked(37_000, KNOBS, has_plan=False)  # pyright: ignore[reportArgumentType]
    return CourseRequest(trace=trace, machine=machine, budget=budget, asked=knobs, from_first=True)


def test_a_plan_may_fit_below_a_limit_and_not_below_a_larger_one(request_of_plane_net: CourseRequest) -> None:
    # given the plan that moves everything, back on demand
    made = request_of_plane_net
    machine, knobs = replace(made.machine, allocator="exact"), replace(made.asked, planner="on_demand")
    plan = asking(made.trace, machine, made.budget, knobs, judge=any_recompute).plan(machine.tiers[0].capacity_bytes)
    # when its steps are played below larger and larger limits
    step = last_step(made.trace)
    moves = moves_of_plan(step, plan)
    waiting = early_waits(step, moves, tiers_of_plan(step, plan, moves), None, before_idle=True)
    low = -(-int(need(step, moves).max()) // SEGMENT_BYTES) * SEGMENT_BYTES
    is_enough = fits_below(step, moves, waiting, made.use)
    played = [is_enough(low + more * SEGMENT_BYTES) for more in range(48)]
    # then one that is enough has a larger one above it that is not
    assert any(played)
    assert not all(played[played.index(True) :])


def test_each_budget_above_the_least_is_met(request_of_plane_net: CourseRequest) -> None:
    made = request_of_plane_net
    least = least_of(made)
    for more_bytes in range(0, 60 * MIB, 10 * MIB):
        course = course_within(made.within(least + more_bytes))
        assert course.peak_bytes <= least + more_bytes
    with pytest.raises(Infeasible):
        course_within(made.within(least - SEGMENT_BYTES))


def least_of(made: CourseRequest) -> int:
    with pytest.raises(Infeasible) as refused:
        course_within(made)
    return refused.value.least_feasible_bytes


def test_a_plan_that_a_training_begins_with_leaves_two_pages_free(request_of_plane_net: CourseRequest) -> None:
    settings = "expandable_segments:True,large_segment_size_mb:12"
    made = replace(request_of_plane_net, machine=replace(request_of_plane_net.machine, allocator=settings))
    most_bytes = 300 * MIB - 2 * page_bytes(settings)
    # when a later step is planned, whose workspaces were measured
    later = course_within(replace(made.within(300 * MIB), from_first=False))
    assert most_bytes < later.peak_bytes <= 300 * MIB
    # then it may take them
    begun = course_within(made.within(300 * MIB))
    assert begun.plan.swaps
    assert begun.peak_bytes <= most_bytes
