"""Managed memory: how it is divided, and how much of it plans take. What torch does with it is tested on the rig."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.engine.tiers.managed import _segments
from elbowroom.errors import Infeasible, UsageError
from elbowroom.planners.budget.budgets import resolved
from elbowroom.planners.budget.run_budget import CourseRequest, course_within
from elbowroom.planners.request import PlanRequest
from elbowroom.run.options import asked
from elbowroom.units import Amount, Budget
from tests.core.build import chain, machine

MIB = 2**20


@pytest.mark.parametrize(
    ("managed_bytes", "small", "large_bytes"),
    [
        (32 * MIB, 2, 28 * MIB),  # an eighth is 4 MiB, two segments of 2 MiB
        (100 * MIB + 5, 6, 88 * MIB),  # 12.5 MiB are six segments, and what is no multiple of 2 MiB is left out
        (4096 * MIB, 64, 3968 * MIB),  # at most 64 of them
    ],
)
def test_part_of_it_is_for_small_requests(managed_bytes: int, small: int, large_bytes: int) -> None:
    assert _segments(managed_bytes) == [2 * MIB] * small + [large_bytes]


def test_too_little_of_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"given managed=31.0 MiB; allowed are 32.0 MiB and more"):
        _segments(31 * MIB)


def test_its_size_is_given_as_sizes_are() -> None:
    assert asked(1, {"managed": "64MiB"}, has_plan=False).managed_bytes == 64 * MIB
    assert asked(1, {}, has_plan=False).managed_bytes == 0
    with pytest.raises(UsageError, match="size: given 'much'"):
        asked(1, {"managed": "much"}, has_plan=False)


def test_a_plan_takes_as_little_of_it_as_there_is_a_plan_for() -> None:
    # given a step of five layers of 5 bytes and half of what its least plan needs
    trace, on = chain([5] * 5), machine()
    knobs = PlanRequest(allow=("swap",), min_size_bytes=1)
    least = CourseRequest(
        trace=trace, machine=on, budget=resolved(on, Budget(device=Amount(size_bytes=1))), asked=knobs
    )
    with pytest.raises(Infeasible) as caught:
        course_within(least)
    least_bytes = caught.value.least_feasible_bytes
    half = least.within(least_bytes // 2)

    # when as much managed memory is allowed as would keep everything
    course = course_within(replace(half, asked=replace(knobs, managed_bytes=1000)))
    # then the plan swaps all that helps
    assert course.plan.swaps
    assert course.peak_bytes == least_bytes

    # and where less is allowed than the least plan needs, there is none
    with pytest.raises(Infeasible):
        course_within(replace(half, asked=replace(knobs, managed_bytes=1)))
