"""Plans for several budgets of one step: each begins with those for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.answers.pareto import pareto
from elbowroom.machine import Machine
from elbowroom.planners import asking, check, requested
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.optimal import rough_trials
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace
from elbowroom.units import Budget
from tests.core.build import chain, machine

MIB = 2**20
SIZES = [3 * MIB + 512 * 1024 * (i % 7) for i in range(60)]


def deep() -> tuple[Trace, Machine]:
    """A chain of 60 layers, and a machine whose link takes as long for a byte as a layer does for four."""
    trace = chain(SIZES, ns=4 * MIB, steps=2)
    return trace, replace(machine(), allocator="")


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rungs that programs are solved for, in turn."""
    found = list[int]()
    starts = rough_trials.Search._starts  # pyright: ignore[reportPrivateUsage]

    def noted(self: rough_trials.Search, budget_bytes: int, *, few: bool = False) -> list[rough_trials.Start]:
        found.extend([budget_bytes] if few else [])
        return starts(self, budget_bytes, few=few)

    monkeypatch.setattr(rough_trials.Search, "_starts", noted)
    return found


def test_a_ladder_of_rungs_is_gone_down_once_for_all_budgets(solved: list[int]) -> None:
    trace, on = deep()
    kept = simulate(trace, on).peak_reserved_bytes
    ask = asking(trace, on, below_device(on, Budget()), requested(min_size=1, time_limit_s=1.0), shared={})

    # when plans are asked for four budgets, of which the last two are near
    made = [ask.plan(int(share * kept)) for share in (0.5, 0.8, 0.62, 0.61)]

    # then no rung was looked at twice, and every plan is one
    assert solved
    assert len(solved) == len(set(solved))
    for each in made:
        check(trace, each, on)
        assert simulate(trace, on, each).peak_reserved_bytes <= each.budget_bytes


def test_a_plan_that_stands_alone_goes_down_a_ladder_of_its_own(solved: list[int]) -> None:
    trace, on = deep()
    budget = simulate(trace, on).peak_reserved_bytes // 2
    ask = asking(trace, on, below_device(on, Budget()), requested(min_size=1, time_limit_s=1.0))

    first, second = ask.plan(budget), ask.plan(budget)

    # the first rung is the budget itself; the second plan knows nothing of the first, and is the same
    assert solved[0] == budget
    assert solved[: len(solved) // 2] == solved[len(solved) // 2 :]
    assert first == second


@pytest.mark.long
def test_a_larger_budget_has_no_slower_plan_than_a_smaller_one_asked_for_before() -> None:
    trace, on = deep()
    kept = simulate(trace, on).peak_reserved_bytes
    ask = asking(trace, on, below_device(on, Budget()), requested(min_size=1, time_limit_s=1.0), shared={})

    steps_ns = [ask.weigh(int(share * kept)).step_ns for share in (0.4, 0.5, 0.55, 0.7, 0.9)]

    assert steps_ns == sorted(steps_ns, reverse=True)


@pytest.mark.long
def test_a_curve_falls_and_each_of_its_plans_stays_above_the_bound() -> None:
    trace, on = deep()
    curve = pareto(trace, on, count=5, min_size=1)

    assert len(curve.points) == 5
    assert [p.step_ns for p in curve.points] == sorted((p.step_ns for p in curve.points), reverse=True)
    least_ns = int(last_step(trace).at_ns[-1])
    assert all(p.lower_bound_ns is not None and least_ns <= p.lower_bound_ns <= p.step_ns for p in curve.points)
    assert all(p.peak_reserved_bytes <= p.budget_bytes for p in curve.points)
