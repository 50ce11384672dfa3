"""The least budget at a slowdown, what is needed beside a capacity, and the curve of budget against step time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.answers.pareto import Pareto, Point, pareto
from elbowroom.errors import Infeasible, InvalidRecord, UsageError
from elbowroom.plan import Plan
from elbowroom.planners import check, plan
from elbowroom.planners.budget.least import Weighed, least_plan, needed_bytes
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.timeline import Curve, Timeline
from elbowroom.trace import Trace
from tests.core.build import chain, machine, traces


class Line:
    """A planner whose step takes 1000 ns and 10 more for every byte missing to 100, down to 20 bytes."""

    def __init__(self, least: int = 20) -> None:
        self.least = least
        self.asked: list[int] = []

    def __call__(self, budget: int) -> Weighed:
        self.asked.append(budget)
        if budget < self.least:
            raise Infeasible("too little", budget_bytes=budget, least_feasible_bytes=self.least)
        return weighed(budget, 1000 + 10 * max(0, 100 - budget))


def weighed(budget: int, step_ns: int) -> Weighed:
    curve = Curve(tier="device", kind="allocated", at_ns=(0,), size_bytes=(budget,))
    line = Timeline(source="simulated", trace_id="t", step_ns=step_ns, spans=(), curves=(curve,))
    return Weighed(Plan(trace_id="t", planner="line", budget_bytes=budget), line)


KEPT = weighed(100, 1000)


def test_without_a_slowdown_the_least_budget_is_the_least_feasible_one() -> None:
    ask = Line()
    assert least_plan(ask, KEPT, None).budget_bytes == 20
    assert ask.asked == [0, 20]


@pytest.mark.parametrize(("slowdown", "least"), [(1.0, 100), (1.2, 80), (1.5, 50), (1.79, 21), (1.8, 20), (9.0, 20)])
def test_the_least_budget_for_a_slowdown_is_found_to_a_hundredth_in_few_plans(slowdown: float, least: int) -> None:
    # given 10 ns a byte: a slowdown of 1.2 is 200 ns, 20 bytes of the 100 that keeping everything takes
    ask = Line()

    found = least_plan(ask, KEPT, slowdown)

    assert least <= found.budget_bytes <= least + 1
    assert len(ask.asked) <= 10


def test_a_planner_that_is_too_slow_at_every_budget_is_said_to_be() -> None:
    with pytest.raises(
        UsageError,
        match=re.escape("slowdown: given 1.2; planner 'line' takes 1.500 times as long even where everything fits"),
    ):
        least_plan(lambda budget: weighed(budget, 1500), KEPT, 1.2)


@pytest.mark.parametrize(("slowdown", "needed"), [(1.2, 80), (1.5, 50), (2.0, 20)])
@pytest.mark.parametrize("capacity", [10, 49, 50, 51, 79, 80, 81, 200])
def test_what_is_needed_is_on_the_right_side_of_the_capacity(slowdown: float, needed: int, capacity: int) -> None:
    ask = Line()
    found = needed_bytes(ask, KEPT, slowdown, capacity)
    assert (found <= capacity) == (needed <= capacity)
    assert needed <= found <= needed + 4
    assert len(ask.asked) <= 8


def test_a_step_may_be_planned_for_the_least_budget() -> None:
    # given 4 layers of 10 bytes; ops of 10 ns, copies of 10 ns; 40 bytes keep everything, in 80 ns. Swapped on demand,
    # and each waited for before the next op, one of them is held at a time
    trace = chain([10, 10, 10, 10])
    on = machine()

    least = plan(trace, on, "least", "swap_greedy", min_size=1)
    free = plan(trace, on, "least", "swap_greedy", min_size=1, slowdown=1.0)

    assert least.budget_bytes == 10
    assert simulate(trace, on, free).step_ns == 80
    assert 10 < free.budget_bytes < 40
    for made in (least, free):
        check(trace, made, on)


def test_a_slowdown_without_the_least_budget_is_refused() -> None:
    with pytest.raises(UsageError, match=re.escape("slowdown: given 1.2 with budget 20 B; allowed is it with")):
        plan(chain([10]), machine(), 20, slowdown=1.2)
    with pytest.raises(UsageError, match=re.escape("slowdown: given 0.9; allowed is a factor of 1 or more")):
        plan(chain([10]), machine(), "least", slowdown=0.9)


@pytest.mark.parametrize("planner", ["swap_greedy", "tflms", "lms"])
def test_a_budget_on_a_caching_allocator_bounds_what_is_reserved(planner: str) -> None:
    # given layers of 30 to 90 MiB, whose blocks do not fit where others were freed
    trace = chain([size * 2**20 for size in (30, 70, 50, 90, 30, 80, 60, 40)])
    on = replace(machine(out=10**18, back=10**18), allocator="")
    kept = simulate(trace, on).peak_reserved_bytes
    assert kept >= 450 * 2**20

    for percent in (90, 75, 60, 45):
        try:
            made = plan(trace, on, kept * percent // 100, planner)
        except Infeasible as problem:
            made = plan(trace, on, problem.least_feasible_bytes, planner)
        assert simulate(trace, on, made).peak_reserved_bytes <= made.budget_bytes


@settings(max_examples=40, deadline=None)
@given(traces(), st.sampled_from([10**7, 10**8, 10**9, 10**10]), st.sampled_from([1.0, 1.1, 1.5, 3.0]))
def test_plans_for_the_least_budget_keep_the_slowdown(trace: Trace, rate: int, slowdown: float) -> None:
    on = machine(rate, rate)
    kept = simulate(trace, on)

    made = plan(trace, on, "least", "swap_greedy", min_size=1, slowdown=slowdown)

    check(trace, made, on)
    assert simulate(trace, on, made).step_ns <= kept.step_ns * slowdown
    assert made.budget_bytes <= max(kept.peak_allocated_bytes, made.budget_bytes if not made.swaps else 0)


def test_the_curve_falls_from_the_least_budget_to_keeping_everything() -> None:
    trace, on = chain([10] * 12), machine(out=5 * 10**8, back=5 * 10**8)

    curve = pareto(trace, on, ("swap_greedy", "swap_all"), count=6, min_size=1)

    assert curve.planners == ("swap_greedy", "swap_all")
    assert (curve.kept_peak_bytes, curve.kept_step_ns) == (120, 240)
    for planner in curve.planners:
        points = curve.of(planner)
        times = [point.step_ns for point in points]
        assert 2 <= len(points) <= 6
        assert times == sorted(times, reverse=True)
        assert all(point.peak_allocated_bytes <= point.budget_bytes for point in points)
    last = curve.of("swap_greedy")[-1]
    assert (last.budget_bytes, last.step_ns, curve.slowdown(last)) == (120, 240, 1.0)


def test_a_curve_is_a_file(tmp_path: Path) -> None:
    curve = pareto(chain([10] * 6), machine(), ("swap_greedy",), count=3, min_size=1)
    curve.save(tmp_path / "curve.json")
    assert Pareto.load(tmp_path / "curve.json") == curve


def test_a_curve_whose_points_do_not_rise_is_refused() -> None:
    curve = pareto(chain([10] * 6), machine(), ("swap_greedy",), count=3, min_size=1)
    with pytest.raises(InvalidRecord, match=r"Pareto\.points"):
        replace(curve, points=curve.points[::-1])
    with pytest.raises(InvalidRecord, match=r"Point\.lower_bound_ns"):
        replace(curve.points[0], lower_bound_ns=curve.points[0].step_ns + 1)


def test_a_trace_that_cannot_be_planned_has_a_curve_of_one_point() -> None:
    # given a layer that is read at once: nothing can move, and keeping it is the least
    curve = pareto(chain([10]), machine(), ("swap_greedy",), min_size=1)
    assert [point.budget_bytes for point in curve.points] == [int(last_step(chain([10])).level.max())]
    assert isinstance(curve.points[0], Point)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 1}, "pareto: given count=1; allowed are 2 points or more, for its ends; raise it"),
        (
            {"planners": ("swap_all", "lms"), "options": {"size_bytes": 1}},
            "pareto: given options for 2 planners; allowed is it for one; leave them out",
        ),
    ],
)
def test_a_curve_that_cannot_be_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        pareto(chain([10]), machine(), **arguments)  # pyright: ignore[reportArgumentType]
