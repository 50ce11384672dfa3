"""Plans of a run for a budget of reserved bytes: which budgets are met, and the least that a refusal names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import Infeasible
from elbowroom.planners import Means, requested
from elbowroom.planners.budget.run_budget import CourseRequest, course_within
from elbowroom.planners.request import ResolvedBudget
from tests.core.build import chain, machine

pytestmark = pytest.mark.long

MIB = 2**20
TRACE = chain([mib * MIB for mib in (40, 3, 30, 8, 14, 25, 60, 12)], base=2 * MIB, temporary=9 * MIB)
EXPANDABLE = "expandable_segments:True,large_segment_size_mb:12"


def request(budget_bytes: int, allocator: str, capacity_bytes: int = 2**40, *means: Means) -> CourseRequest:
    """A request for the trace on a device of this capacity; swaps alone, unless other means are given."""
    here = replace(machine(), allocator=allocator)
    tiers = (replace(here.tiers[0], capacity_bytes=capacity_bytes), *here.tiers[1:])
    budget = ResolvedBudget(device_bytes=budget_bytes, disk_bytes=2**40)
    asked = replace(requested(min_size=MIB, allow=means or ("swap",)), planner=None)
    return CourseRequest(trace=TRACE, machine=replace(here, tiers=tiers), budget=budget, asked=asked)


def least_named(made: CourseRequest) -> int:
    with pytest.raises(Infeasible) as refused:
        course_within(made)
    return refused.value.least_feasible_bytes


@pytest.mark.parametrize("allocator", ["", EXPANDABLE])
def test_the_least_that_is_named_does_not_depend_on_how_little_the_device_has(allocator: str) -> None:
    # given
    least = least_named(request(20 * MIB, allocator))
    # then it is met, the same is named for each smaller budget, and on a device that has no more than that
    assert course_within(request(least, allocator)).peak_bytes <= least
    for budget_bytes in (MIB, least // 2, least - 2 * MIB):
        for capacity_bytes in (budget_bytes, 2**40):
            assert abs(least_named(request(budget_bytes, allocator, capacity_bytes)) - least) <= 2 * MIB


@pytest.mark.parametrize("allocator", ["", EXPANDABLE])
def test_recomputes_alone_meet_budgets_that_the_plan_for_the_least_allocated_bytes_does_not_meet(
    allocator: str,
) -> None:
    # given budgets from what keeping everything takes downwards
    budgets = range(230 * MIB, 90 * MIB, -20 * MIB)
    # when
    met = [_is_met(request(budget_bytes, allocator, 2**40, "recompute")) for budget_bytes in budgets]
    # then no larger budget is refused than one that is met
    assert met == sorted(met, reverse=True)
    assert met[0]


def _is_met(made: CourseRequest) -> bool:
    try:
        return course_within(made).peak_bytes <= made.budget.device_bytes
    except Infeasible:
        return False


def test_a_refusal_on_a_device_with_less_than_the_least_looks_for_no_budget_byte_by_byte() -> None:
    # given a least size of what moves that follows the budget, on a device of a container's RAM
    made = request(20 * MIB, "exact", 24 * MIB)
    made = replace(made, asked=replace(made.asked, follows=True, min_size_bytes=20 * MIB // 4096))
    # when
    least = least_named(made)
    # then the least is beyond what the device has, and what larger devices name too
    assert least > 24 * MIB
    assert least == least_named(replace(made, machine=request(MIB, "exact").machine))
