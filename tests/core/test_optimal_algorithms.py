"""The optimal planner where ops offer several algorithms: as fast as any choice of them, and never below its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain as joined
from itertools import combinations, product
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine
from elbowroom.plan import Algorithm, Plan, Swap
from elbowroom.planners import MEANS, PLANNERS, check
from elbowroom.planners import plan as plan_with
from elbowroom.planners.optimal.algorithm_choice import every, frugal, optimistic
from elbowroom.planners.optimal.baseline_trials import BASELINES
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.optimal.optimal import optimal
from elbowroom.planners.optimal.refine import choice_count, ticks_for
from elbowroom.planners.optimal.rough_trials import pool_of
from elbowroom.planners.problem import Means, Problem, movable
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.recipes import options
from elbowroom.trace import Choice, Trace
from tests.core.build import Build, machine
from tests.core.plans import linked_traces

RATES = st.sampled_from([10**7, 10**9, 10**10])
plan = partial(plan_with, allow=MEANS)  # algorithms change numbers: nobody gets them who does not ask


def problem_of(trace: Trace, on: Machine, budget: int) -> Problem:
    return Problem(
        step=last_step(trace), machine=on, tier="disk", tier_bytes=10**12, budget_bytes=budget, min_size_bytes=1
    )


def two_convolutions(*, small_first: bool = False) -> Trace:
    """Two ops take 100 ns with 50 bytes of workspace, or 130 ns with none; storage 0 of 60 bytes is made and saved."""
    fast = Choice(name="fast", duration_ns=100, workspace_bytes=50)
    small = Choice(name="small", duration_ns=130, workspace_bytes=0)
    choices = (small, fast) if small_first else (fast, small)
    build = Build()
    first = build.op("convolution", choices[0].duration_ns, make=60)
    build.free(build.storage(choices[0].workspace_bytes, "workspace"))
    build.save(first)
    build.op("convolution", choices[0].duration_ns)
    build.free(build.storage(choices[0].workspace_bytes, "workspace"))
    build.phase = "backward"
    build.read(first)
    build.op("backward", 10, reads=(first,))
    build.free(first)
    trace = build.trace()
    ops = (replace(op, choices=choices) if op.name == "convolution" else op for op in trace.ops)
    return replace(trace, ops=tuple(ops))


def test_only_the_op_above_the_budget_gives_its_workspace_up() -> None:
    # given 60 + 50 bytes at both ops, and a link on which a swap takes 600 ns each way
    trace, on = two_convolutions(), machine(10**8, 10**8)

    # then at 110 bytes nothing is done, and at 109 both ops must do without: 130 + 130 + 10
    assert plan(trace, on, 110, "optimal", min_size=1).algorithms == ()
    made = plan(trace, on, 109, "optimal", min_size=1, allow=("algorithm",))
    assert made.algorithms == (Algorithm(op=0, choice="small"), Algorithm(op=1, choice="small"))
    assert made.bound is not None
    assert made.bound.step_ns == simulate(trace, on, made).step_ns == 270

    # and the fastest ops of least workspace take 100 + 100 + 10
    assert made.bound.lower_bound_ns == 210


def test_a_faster_algorithm_than_the_recorded_one_is_taken_where_it_fits() -> None:
    # given the same, recorded with the small algorithms
    trace, on = two_convolutions(small_first=True), machine()

    # then at 110 bytes both ops run with the fast ones
    made = plan(trace, on, 110, "optimal", min_size=1)
    assert made.algorithms == (Algorithm(op=0, choice="fast"), Algorithm(op=1, choice="fast"))
    assert made.bound is not None
    assert (simulate(trace, on, made).step_ns, made.bound.gap) == (210, 0.0)

    # and where algorithms are not allowed it is as recorded
    assert plan(trace, on, 110, "optimal", min_size=1, allow=("swap",)).algorithms == ()


def test_the_optimistic_step_has_the_time_of_one_choice_and_the_workspace_of_another() -> None:
    # given two convolutions of 100 ns or no workspace, beside 60 bytes and an op of 10 ns
    problem = problem_of(two_convolutions(), machine(), 60)
    step = optimistic(problem).step
    assert (int(step.at_ns[-1]), int(step.level.max()), int(problem.step.level.max())) == (210, 60, 110)
    assert [algorithm.op for algorithm in frugal(problem).algorithms] == [0, 1]


def test_algorithms_count_in_the_least_feasible_budget() -> None:
    # given 60 bytes that the first op makes: without workspace no less can be met, with it 50 more
    trace, on = two_convolutions(), machine()
    asked: tuple[tuple[tuple[Means, ...], int], ...] = ((("algorithm",), 60), (("recompute",), 110))
    for allow, least in asked:
        with pytest.raises(Infeasible) as caught:
            plan(trace, on, 0, "optimal", min_size=1, allow=allow)
        assert caught.value.least_feasible_bytes == least
        assert plan(trace, on, least, "optimal", min_size=1, allow=allow).planner == "optimal"


@settings(max_examples=60, deadline=None)
@given(linked_traces(layers=4), RATES, RATES, st.sampled_from([0, 10, 30, 60, 100]))
def test_on_small_steps_no_plan_of_any_algorithms_is_faster(trace: Trace, out: int, back: int, percent: int) -> None:
    # given any budget, and few enough choices to play them all here
    on = machine(out, back)
    count = prod(max(1, len(op.choices)) for op in trace.ops)
    problem = problem_of(trace, on, 0)
    pool = replace(pool_of(problem), options=options(problem.step, 1))
    assume(count > 1 and count * choice_count(pool) <= 400)
    peak = int(problem.step.level.max())
    try:
        least = plan(trace, on, 0, "optimal", min_size=1).budget_bytes
    except Infeasible as found:
        least = found.least_feasible_bytes
    budget = least + (peak - least) * percent // 100

    made = plan(trace, on, budget, "optimal", min_size=1)

    # then the plan takes what the fastest of all plans takes, and none takes less than its bound
    check(trace, made, on)
    line = simulate(trace, on, made)
    assert made.bound is not None
    assert line.peak_allocated_bytes <= budget
    assert line.step_ns == made.bound.step_ns == min(times_of_all(problem, budget))
    assert made.bound.lower_bound_ns <= line.step_ns


def times_of_all(problem: Problem, budget: int) -> Iterator[int]:
    """The simulated times of all plans of algorithms, swaps and recipes on offer that meet a budget."""
    for way in every(problem):
        step, on_offer = problem.step, options(way.step, 1)
        index = {save.storage: n for n, save in enumerate(step.saves)}
        sets = (combinations(on_offer, count) for count in range(len(on_offer) + 1))
        for chosen in joined(joined.from_iterable(sets), ClosedRecipes(way).every()):
            taken = [option.recompute for option in chosen]
            dropped = [index[s] for recompute in taken for s in recompute.storages]
            if len(set(dropped)) < len(dropped):
                continue
            n = [i for i in movable(problem).tolist() if i not in dropped]
            for backs in product(*([None, *ticks_for(step, i).tolist()] for i in n)):
                pairs = [(i, back) for i, back in zip(n, backs, strict=True) if back is not None]
                made = Plan(
                    trace_id=step.trace.id,
                    planner="every",
                    budget_bytes=budget,
                    swaps=tuple(swap_of(step.saves[i].storage, step.saves[i].saved_at, back) for i, back in pairs),
                    recomputes=tuple(taken),
                    algorithms=way.algorithms,
                )
                try:
                    check(step.trace, made, problem.machine)
                except InvalidPlan:
                    continue
                yield simulate(step.trace, problem.machine, made).step_ns


def swap_of(storage: int, saved_at: int, back: int) -> Swap:
    return Swap(storage=storage, tier="disk", out_after_op=saved_at - 1, back_before_op=back)


@settings(max_examples=60, deadline=None)
@given(linked_traces(), RATES, RATES, st.sampled_from([0, 10, 30, 60, 100]))
def test_no_baseline_at_all_is_faster(trace: Trace, out: int, back: int, percent: int) -> None:
    # given any budget that can be met, and every planner there is
    on = machine(out, back)
    peak = int(last_step(trace).level.max())
    try:
        least = plan(trace, on, 0, "optimal", min_size=1).budget_bytes
    except Infeasible as found:
        least = found.least_feasible_bytes
    budget = least + (peak - least) * percent // 100
    others: dict[str, int] = {}
    for baseline in set(PLANNERS) - {"optimal"}:
        try:
            others[baseline] = simulate(trace, on, plan(trace, on, budget, baseline, min_size=1)).step_ns
        except Infeasible:
            continue

    made = plan(trace, on, budget, "optimal", min_size=1)

    # then none of those that meet the budget is faster
    check(trace, made, on)
    step_ns = simulate(trace, on, made).step_ns
    assert all(step_ns <= other_ns for other_ns in others.values()), others


def test_every_registered_baseline_is_a_seed() -> None:
    assert set(BASELINES) == set(PLANNERS.values()) - {optimal}
