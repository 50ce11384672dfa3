"""The optimal planner: the pipe program and its bound, exchanges, and plans that are as fast as any."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain as joined
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine, Tier
from elbowroom.plan import Bound, Plan, Swap
from elbowroom.planners import check, plan
from elbowroom.planners.optimal.bring_back_early import bring_back_early, bring_back_later
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.optimal.pipe import Offer, Pipe, choose, marks_of, swaps_on_offer
from elbowroom.planners.optimal.pipe_recomputes import Recomputes, options_on_offer
from elbowroom.planners.optimal.refine import choice_count, ticks_for
from elbowroom.planners.optimal.rough_trials import pool_of
from elbowroom.planners.optimal.solver import Model
from elbowroom.planners.problem import Problem, movable, moves_on_demand, moving, peak_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of
from elbowroom.step.recipes import options
from elbowroom.trace import Trace
from tests.core.build import Build, chain, machine, traces

RATES = st.sampled_from([10**7, 10**8, 3 * 10**8, 10**9, 3 * 10**9, 10**10])
PERCENT = st.sampled_from([0, 0, 5, 10, 20, 30, 50, 70, 90])
BASELINES = ("keep_all", "swap_all", "swap_greedy")


def problem_of(trace: Trace, on: Machine, budget: int) -> Problem:
    disk = next(tier.capacity_bytes for tier in on.tiers if tier.name == "disk")
    return Problem(
        step=last_step(trace), machine=on, tier="disk", tier_bytes=disk, budget_bytes=budget, min_size_bytes=1
    )


def budget_between(trace: Trace, on: Machine, percent: int) -> int:
    """A budget between the least feasible one (0) and what keeping everything takes (100)."""
    step = last_step(trace)
    peak = int(step.level.max())
    least = peak_of(step, moves_on_demand(step, movable(problem_of(trace, on, peak))))
    return least + (peak - least) * percent // 100


def bound_ns(problem: Problem, rate: float, marks: int = 400, recomputes: Recomputes | None = None) -> float:
    """What the pipe program says the step takes longer than its ops at least; without recomputes unless told."""
    swaps = swaps_on_offer(problem.step, movable(problem))
    offered = recomputes or options_on_offer(problem.step, ())
    offer = Offer(
        step=problem.step,
        swaps=swaps,
        recomputes=offered,
        marks=marks_of(problem.step, swaps, problem.budget_bytes, marks, offered),
        pipe=Pipe(out=rate, back=rate),
        budget_bytes=problem.budget_bytes,
    )
    return choose(offer, 60.0).bound_ns


def fastest(problem: Problem) -> int:
    """The simulated time of the fastest of all plans, by playing each."""
    step, n = problem.step, movable(problem)
    times: list[int] = []
    for backs in product(*([-1, *ticks_for(step, i).tolist()] for i in n.tolist())):
        back = np.array(backs, np.int64)
        moves = moves_of(step, n[back >= 0], back[back >= 0])
        if peak_of(step, moves) <= problem.budget_bytes:
            times.append(moving(problem, moves).step_ns)
    return min(times)


def test_the_program_is_solved_in_reals() -> None:
    # given the least of x + y with 2 x + 2 y >= 3
    model = Model()
    x, y = (model.columns(1, cost=1.0, upper=1.0) for _ in range(2))
    row = np.zeros(1, np.int64)
    model.rows(1, (row, x, 2.0), (row, y, 2.0), least=3.0, most=float("inf"))

    # then it is 1.5
    assert model.solve(seconds=10.0).bound == pytest.approx(1.5)


def test_a_column_that_a_row_names_twice_counts_with_the_sum_of_its_factors() -> None:
    # given the least x with x + 2 x >= 6
    model = Model()
    x = model.columns(1, cost=1.0)
    row = np.zeros(1, np.int64)
    model.rows(1, (row, x, 1.0), (row, x, 2.0), least=6.0, most=float("inf"))
    assert model.solve(seconds=10.0).cost == pytest.approx(2.0)


def test_a_program_that_nothing_meets_has_no_values() -> None:
    model = Model()
    x = model.columns(1, cost=1.0, upper=1.0)
    model.rows(1, (np.zeros(1, np.int64), x, 1.0), least=2.0, most=float("inf"))
    answer = model.solve(seconds=10.0)
    assert (len(answer.values), answer.cost, answer.bound) == (0, float("inf"), 0.0)


def test_the_bound_is_what_the_link_cannot_hide() -> None:
    # given 4 layers of 100 bytes, ops of 10 ns, a byte a ns, and 200 bytes allowed: when op 2 runs 100 bytes must have
    # been written, of which 10 ns (op 1) are free: 90. When op 3 runs it is 200, 10 more are free (op 2): 90 more.
    # Ops 4 and 5 read what is left. Before op 6 the first storage to return must be back: it can come from op 5 on,
    # when the first of the two left is freed, so 10 are free: 90. The other has to come during op 6: 90 more
    trace = chain([100, 100, 100, 100])
    problem = problem_of(trace, machine(), 200)

    assert bound_ns(problem, 1.0) == pytest.approx(360, abs=0.01)

    # then the plan is as fast: 80 ns of ops and the waits
    made = plan(trace, machine(), 200, "optimal", min_size=1, allow=("swap",))
    assert simulate(trace, machine(), made).step_ns == 440
    assert made.bound == Bound(machine="test", step_ns=440, lower_bound_ns=440)


def test_copies_back_that_are_late_anyway_start_as_soon_as_there_is_room() -> None:
    # given 4 layers of 100 bytes, a byte a ns, 200 bytes allowed, the first two swapped: op 4 reads and frees the last
    problem = problem_of(chain([100, 100, 100, 100]), machine(), 200)

    moves = bring_back_early(problem, np.array([0, 1]))

    # then storage 1, needed first, starts before op 5 and storage 0 before op 6, when the next is freed
    assert moves.back.tolist() == [6, 5]
    assert bring_back_later(problem, moves, moving(problem, moves)).back.tolist() == [6, 5]


def test_copies_back_that_are_early_wait_until_they_are_due() -> None:
    # given 300 ns of backward ahead of the read of storage 0, and room for it all the time after op 1
    build = Build()
    first = build.save(build.op(make=50, ns=100))
    build.op(ns=100, temporary=60)
    build.phase = "backward"
    for _ in range(3):
        second = build.save(build.op(make=1, ns=100))
        build.read(second)
    build.read(first)
    build.op(ns=10)
    problem = problem_of(build.trace(), machine(), 60)

    early = bring_back_early(problem, np.array([0]))
    later = bring_back_later(problem, early, moving(problem, early))

    # then it may come from position 3 on, the first tick after the temporary. Before op 1 compute waits 50 ns for the
    # write, so it is read at 550, and 50 ns before that position 4, at 450, is the last tick
    assert (early.back.tolist(), later.back.tolist()) == ([3], [4])
    assert moving(problem, later).step_ns == moving(problem, early).step_ns == 560


def test_where_the_step_fits_nothing_is_moved() -> None:
    made = plan(chain([100, 100]), machine(), 200, "optimal", min_size=1)
    assert (made.planner, made.swaps) == ("optimal", ())


def test_a_budget_that_nothing_meets_is_refused_with_the_least_that_can_be_met() -> None:
    with pytest.raises(Infeasible, match="The least that 'optimal' can meet is 100 B") as caught:
        plan(chain([100, 100, 100]), machine(), 99, "optimal", min_size=1)
    assert caught.value.least_feasible_bytes == 100


def test_the_same_question_gets_the_same_answer() -> None:
    trace = chain([90, 10, 50, 70, 30, 60, 80, 20])
    made = [plan(trace, machine(), 200, "optimal", min_size=1) for _ in range(2)]
    assert made[0] == made[1]


def test_on_a_caching_allocator_the_budget_counts_what_it_reserves() -> None:
    # given layers of 3 to 30 MiB of which the allocator makes segments of 20 MiB and more, and keeps them for others
    trace = chain([mib * 2**20 for mib in (3, 30, 8, 14, 25, 5, 11, 17)], base=2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    kept = simulate(trace, caching)
    assert kept.peak_reserved_bytes > kept.peak_allocated_bytes

    # then no plan reserves more than the budget, and budgets that are too small name one that is not
    least = infeasible_at(trace, caching, 0)
    for percent in (0, 30, 60, 90, 100):
        budget = least + (kept.peak_reserved_bytes - least) * percent // 100
        try:
            made = plan(trace, caching, budget, "optimal")
        except Infeasible as problem:
            budget = problem.least_feasible_bytes
            made = plan(trace, caching, budget, "optimal")
        assert simulate(trace, caching, made).peak_reserved_bytes <= budget
        assert made.budget_bytes == budget


def infeasible_at(trace: Trace, on: Machine, budget: int) -> int:
    with pytest.raises(Infeasible) as caught:
        plan(trace, on, budget, "optimal")
    return caught.value.least_feasible_bytes


def test_a_budget_for_allocated_but_not_for_reserved_bytes_says_so() -> None:
    # given 50 MiB of layers, of which the allocator can only make more, and all of them allocated at the turn
    trace = chain([mib * 2**20 for mib in (3, 30, 8)], temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    allocated = infeasible_at(trace, replace(caching, allocator="exact"), 0)

    with pytest.raises(Infeasible, match="The least that the allocator of machine 'test' reserves") as caught:
        plan(trace, caching, allocated, "optimal")

    least = caught.value.least_feasible_bytes
    assert least > allocated
    assert plan(trace, caching, least, "optimal").budget_bytes == least
    assert infeasible_at(trace, caching, 0) == least
    assert "Set PYTORCH_ALLOC_CONF=expandable_segments:True, which reserves less." in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(traces(layers=5), RATES, RATES, st.sampled_from([0, 3, 20]), PERCENT)
def test_on_small_steps_no_plan_of_swaps_is_faster(
    trace: Trace, out: int, back: int, latency: int, percent: int
) -> None:
    # given any budget
    on = machine(out, back, latency)
    problem = problem_of(trace, on, budget_between(trace, on, percent))

    made = plan(trace, on, problem.budget_bytes, "optimal", min_size=1, allow=("swap",))

    # then the plan takes what the fastest of all plans takes
    check(trace, made, on)
    line = simulate(trace, on, made)
    assert line.peak_allocated_bytes <= problem.budget_bytes
    assert line.step_ns == fastest(problem)


@settings(max_examples=100, deadline=None)
@given(traces(layers=5), RATES, PERCENT, st.integers(1, 10))
def test_no_plan_of_swaps_takes_less_than_the_bound(trace: Trace, rate: int, percent: int, marks: int) -> None:
    # given any budget and any number of marks
    on = machine(rate, rate)
    problem = problem_of(trace, on, budget_between(trace, on, percent))
    if problem.step.level.max() <= problem.budget_bytes:
        return

    # then the fastest of all plans takes at least the ops' time and the bound of the program
    bound = bound_ns(problem, rate / 1e9, marks)
    assert fastest(problem) >= problem.step.at_ns[-1] + bound - 1e-6 * float(problem.step.at_ns[-1])


@settings(max_examples=60, deadline=None)
@given(traces(layers=4), RATES, RATES, PERCENT)
def test_on_small_steps_no_plan_of_swaps_and_recomputes_is_faster(
    trace: Trace, out: int, back: int, percent: int
) -> None:
    # given any budget, and few enough choices to play them all here
    on = machine(out, back)
    problem = problem_of(trace, on, budget_between(trace, on, percent))
    assume(choice_count(replace(pool_of(problem), options=options(problem.step, 1))) <= 500)

    made = plan(trace, on, problem.budget_bytes, "optimal", min_size=1)

    # then the plan takes what the fastest of all plans takes, and none takes less than its bound
    check(trace, made, on)
    line = simulate(trace, on, made)
    assert line.peak_allocated_bytes <= problem.budget_bytes
    assert made.bound is not None
    assert line.step_ns == made.bound.step_ns == fastest_with_recomputes(problem)
    assert made.bound.lower_bound_ns <= line.step_ns


def fastest_with_recomputes(problem: Problem) -> int:
    """The simulated time of the fastest of all plans of swaps and of recipes on offer, by playing each."""
    step, save_of = problem.step, {save.storage: n for n, save in enumerate(problem.step.saves)}
    times: list[int] = []
    on_offer = options(step, 1)
    sets = (combinations(on_offer, count) for count in range(len(on_offer) + 1))
    for taken in joined(joined.from_iterable(sets), ClosedRecipes(problem).every()):
        dropped = [save_of[s] for option in taken for s in option.recompute.storages]
        if len(set(dropped)) < len(dropped):
            continue
        n = [i for i in movable(problem).tolist() if i not in dropped]
        for backs in product(*([None, *ticks_for(step, i).tolist()] for i in n)):
            swaps = [(i, back) for i, back in zip(n, backs, strict=True) if back is not None]
            made = Plan(
                trace_id=step.trace.id,
                planner="every",
                budget_bytes=problem.budget_bytes,
                swaps=tuple(
                    Swap(
                        storage=step.saves[i].storage,
                        tier="disk",
                        out_after_op=step.saves[i].saved_at - 1,
                        back_before_op=back,
                    )
                    for i, back in swaps
                ),
                recomputes=tuple(option.recompute for option in taken),
            )
            try:
                check(step.trace, made, problem.machine)
            except InvalidPlan:
                continue
            times.append(simulate(step.trace, problem.machine, made).step_ns)
    return min(times)


@settings(max_examples=40, deadline=None)
@given(traces(layers=14), RATES, RATES, st.sampled_from([0, 3, 20]), PERCENT)
def test_on_larger_steps_no_baseline_is_faster(trace: Trace, out: int, back: int, latency: int, percent: int) -> None:
    on = machine(out, back, latency)
    budget = budget_between(trace, on, percent)
    made = plan(trace, on, budget, "optimal", min_size=1)
    check(trace, made, on)
    step_ns = simulate(trace, on, made).step_ns
    for baseline in BASELINES:
        try:
            other = plan(trace, on, budget, baseline, min_size=1)
        except Infeasible:
            continue
        assert step_ns <= simulate(trace, on, other).step_ns


def test_without_a_lower_tier_recomputing_alone_meets_a_budget() -> None:
    # given 3 layers of 100 bytes, each made by an op of its own
    bare = Machine(name="bare", tiers=(Tier(name="device", capacity_bytes=1000),), links=())
    trace = chain([100, 100, 100])

    made = plan(trace, bare, 200, "optimal", min_size=1)

    # then one of them is dropped: that takes one op of 10 ns more than the 60 there are, and no plan takes less
    assert simulate(trace, bare, made).step_ns == 70
    assert (len(made.swaps), len(made.recomputes)) == (0, 1)
    assert made.bound == Bound(machine="bare", step_ns=70, lower_bound_ns=70)

    # and the least that can be met is one layer, as all the others are made only when they are read
    with pytest.raises(Infeasible) as caught:
        plan(trace, bare, 99, "optimal", min_size=1)
    assert caught.value.least_feasible_bytes == 100
    assert plan(trace, bare, 100, "optimal", min_size=1).recomputes


def test_what_is_read_back_at_once_is_not_recomputed() -> None:
    # given a storage that is saved, idle and read at position 1, and 10 bytes more held then than allowed
    build = Build()
    first = build.save(build.op(make=10, ns=0))
    build.phase = "backward"
    build.read(first)
    build.op(ns=0, temporary=10)

    # then dropping it gains nothing, as there is no time at which it could be away
    with pytest.raises(Infeasible) as caught:
        plan(build.trace(), machine(), 19, "optimal", min_size=1)
    assert caught.value.least_feasible_bytes == 20
