"""The least size of what may move, where nobody gives one: it follows the budget."""

from __future__ import annotations

import pytest

from elbowroom.answers.pareto import pareto
from elbowroom.errors import Infeasible
from elbowroom.planners import check, plan
from elbowroom.simulate.simulate import simulate
from elbowroom.step.least_size import least_size, said
from tests.core.build import chain, machine

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALL = chain([256 * KIB] * 40)


@pytest.mark.parametrize(
    ("budget", "least"),
    # a 4096th part of the budget, between 4 KiB and 1 MiB
    [(0, 4 * KIB), (16 * MIB, 4 * KIB), (64 * MIB, 16 * KIB), (1 * GIB, 256 * KIB), (4 * GIB, MIB), (80 * GIB, MIB)],
)
def test_it_follows_the_budget(budget: int, least: int) -> None:
    assert least_size(budget) == least


def test_it_is_said_where_it_is_not_that_of_a_large_budget() -> None:
    assert said(MIB) == ""
    assert said(16 * KIB) == "Storages of 16.0 KiB or more may move: the least size follows the budget (--min-size)."


@pytest.mark.parametrize("planner", ["optimal", "swap_greedy"])
@pytest.mark.parametrize("share", [0.6, 0.35])
def test_a_model_of_small_storages_is_planned_for(planner: str, share: float) -> None:
    budget = int(share * simulate(SMALL, machine()).peak_allocated_bytes)
    made = plan(SMALL, machine(), budget, planner)
    assert made.swaps or made.recomputes
    assert simulate(SMALL, machine(), made).peak_allocated_bytes <= budget


def test_a_least_size_that_is_given_holds() -> None:
    with pytest.raises(Infeasible, match=r"those of 1\.0 MiB or more"):
        plan(SMALL, machine(), 5 * MIB, min_size=MIB)


# 100 storages of 8 KiB may move within less than 32 MiB; 34 MiB that no plan gets around are more than that.
BOTH = chain([8 * KIB] * 100 + [34 * MIB])


@pytest.mark.parametrize("planner", ["optimal", "swap_greedy"])
def test_the_least_budget_that_is_named_is_met_with_its_own_least_size(planner: str) -> None:
    # given
    with pytest.raises(Infeasible, match="The least size of what may move follows the budget: ") as refused:
        plan(BOTH, machine(), 20 * MIB, planner)
    # when
    named = refused.value.least_feasible_bytes
    # then
    assert named >= 34 * MIB + 100 * 8 * KIB
    assert plan(BOTH, machine(), named, planner).budget_bytes == named
    assert plan(BOTH, machine(), "least", planner).budget_bytes == named
    # with a least size that is given, less is enough
    assert plan(BOTH, machine(), "least", planner, min_size=4 * KIB).budget_bytes < named


def test_each_point_of_a_curve_has_the_least_size_of_its_budget() -> None:
    curve = pareto(SMALL, machine(), ("swap_greedy",), count=4)
    for point in curve.points:
        check(SMALL, plan(SMALL, machine(), point.budget_bytes, "swap_greedy"), machine())
    assert curve.points[0].budget_bytes < curve.kept_peak_bytes
