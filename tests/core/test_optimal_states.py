"""The optimal planner moves optimizer states: feasible below what saves alone allow, and never below its bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine
from elbowroom.plan import Plan, Swap
from elbowroom.planners import check, plan
from elbowroom.planners.optimal.pipe_bound import alike, bound_ns
from elbowroom.planners.optimal.refine import ticks_for
from elbowroom.planners.optimal.state_choice import deciding, indispensable, placed, states_on_offer
from elbowroom.planners.problem import Problem, movable, moves_on_demand, peak_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import Ints, last_step
from elbowroom.trace import Part, Trace
from tests.core.build import Build, machine

pytestmark = pytest.mark.long

RATES = st.sampled_from([10**7, 10**9, 10**10])


def problem_of(trace: Trace, on: Machine, budget: int) -> Problem:
    return Problem(
        step=last_step(trace), machine=on, tier="disk", tier_bytes=10**12, budget_bytes=budget, min_size_bytes=1
    )


def training(sizes: list[int], states: list[int], ns: int = 10, update_ns: int = 10) -> Trace:
    """A chain of layers with optimizer states: one op per state, after backward, reads and writes it."""
    build = Build()
    held = [build.storage(size, "optimizer_state") for size in states]
    made: list[int] = []
    for size in sizes:
        made.append(build.op("forward", ns, make=size))
        build.save(made[-1])
    build.phase = "backward"
    for storage in reversed(made):
        build.read(storage)
        build.op("backward", ns, reads=(storage,))
        build.free(storage)
    build.phase = "optimizer"
    for storage in held:
        build.op("update", update_ns, reads=(storage,), writes=(storage,))
    return build.trace()


def in_parts(trace: Trace, states: int) -> Trace:
    """A training whose updates, its last ops, are each a part of the optimizer's step: a run gets control there."""
    first = len(trace.ops) - states
    return replace(
        trace, parts=tuple(Part(first_op=first + i, end_op=first + i + 1, storages=(i,)) for i in range(states))
    )


def test_states_that_are_away_in_forward_and_backward_make_room() -> None:
    # given a state of 100 bytes beside 60 bytes that two layers make, and 1 byte per ns
    trace, on = training([30, 30], [100], ns=100), machine()

    # then saves alone leave 130 bytes at least, one layer beside the state
    with pytest.raises(Infeasible) as caught:
        plan(trace, on, 0, "optimal", min_size=1, allow=("swap",))
    assert caught.value.least_feasible_bytes == 130

    # and the state away leaves the state alone, when it is used
    with pytest.raises(Infeasible) as caught:
        plan(trace, on, 0, "optimal", min_size=1)
    assert caught.value.least_feasible_bytes == 100
    made = plan(trace, on, 100, "optimal", min_size=1, allow=("swap", "state"))
    assert [(swap.storage, swap.out_after_op) for swap in made.swaps] == [(0, 4)]
    check(trace, made, on)

    # and in the step of 410 ns, its 100 ns there and 100 ns back are waited for at most
    assert made.bound is not None
    assert simulate(trace, on, made).step_ns == made.bound.step_ns <= 610
    assert made.bound.lower_bound_ns == 410


def test_what_an_optimizer_waits_for_its_states_is_in_the_bound() -> None:
    # given states of 100 bytes, of which 130 bytes hold one and 30 more, and 1 byte per ns
    problem = problem_of(in_parts(training([30], [100, 100], ns=100), 2), machine(), 130)
    states = alike(problem.step, states_on_offer(problem))

    # then the second starts back as the layer's 30 bytes are freed; the first update hides 10 bytes of its 100
    assert bound_ns(problem, movable(problem), states) == pytest.approx(90, abs=1)

    # and with 200 bytes 70 more of it are there by then
    assert bound_ns(replace(problem, budget_bytes=200), movable(problem), states) == pytest.approx(20, abs=1)

    # and no plan is as fast: a whole copy back waits for a whole copy out, and the first state's for the second's
    made = plan(problem.step.trace, problem.machine, 130, "optimal", min_size=1, allow=("swap", "state"))
    assert made.bound is not None
    assert made.bound.lower_bound_ns == 220 + 90
    assert made.bound.step_ns == 420


def test_a_state_comes_back_as_late_as_hides_its_copy() -> None:
    # given ticks at positions 1 and 2 in forward, 2 and 3 in backward, op 4 of the update at 400 ns, 100 ns per copy
    problem = problem_of(training([30, 30], [100], ns=100), machine(), 1000)

    # then position 3 at 300 ns is the last tick from which 100 ns are left
    decided = placed(problem, states_on_offer(problem))
    assert decided.states is not None
    assert decided.states.moves.back.tolist() == [3]

    # and with room for 100 bytes only, it comes back when it is used
    none_left = placed(problem_of(problem.step.trace, machine(), 100), states_on_offer(problem))
    assert none_left.states is not None
    assert none_left.states.moves.back.tolist() == [4]


def test_states_stay_where_there_is_room_for_them_all_along() -> None:
    # given states of 100, 50 and 20 bytes, and two layers of 30, the second of which is made while the first is there
    problem = problem_of(training([30, 30], [100, 50, 20], ns=100), machine(), 150)
    n = states_on_offer(problem)
    assert problem.step.size[n].tolist() == [100, 50, 20]

    # then 20 stays: 60 + 20 in forward, 100 + 20 as the first is updated; 50 would make that 170
    assert problem.step.size[indispensable(problem, n, 150)].tolist() == [100, 50]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.lists(st.integers(1, 90), min_size=1, max_size=5),
    st.integers(1, 400),
)
def test_states_that_have_to_be_away_are_enough_and_none_of_them_could_stay(
    sizes: list[int], states: list[int], budget: int
) -> None:
    problem = problem_of(training(sizes, states), machine(), budget)
    n, step = states_on_offer(problem), problem.step

    def peak(among: Ints) -> int:
        left = deciding(problem, among, step.first_read[among])
        return peak_of(left.step, moves_on_demand(left.step, movable(left)))

    kept = indispensable(problem, n, budget)

    if peak(n) > budget:
        assert kept.tolist() == n.tolist()
        return
    assert peak(kept) <= budget
    assert all(peak(kept[kept != one]) > budget for one in kept)


def test_of_plans_that_are_nearly_as_fast_the_one_that_moves_least_is_taken() -> None:
    # given states of 10 and 100 bytes, layers of 100 us and copies of 100 ns at most: all plans are nearly as fast
    trace, on = training([30, 30], [10, 100], ns=10**5), machine()

    # then of 60 + 110 in forward 55 have to be away; the state that is idle longest is not enough, and then not needed
    made = plan(trace, on, 115, "swap_states", min_size=1)
    assert [swap.storage for swap in made.swaps if swap.storage < 2] == [1]


def test_a_step_with_states_away_holds_less_by_them() -> None:
    # given 100 bytes away but for the update, the last op
    problem = problem_of(training([30, 30], [100]), machine(), 1000)
    n = states_on_offer(problem)
    decided = deciding(problem, n, problem.step.first_read[n])
    assert int(problem.step.level.max()) == 160
    assert int(decided.step.level.max()) == 100
    assert decided.tier_bytes == problem.tier_bytes - 100
    assert np.array_equal(decided.step.slot_peak, np.maximum.reduceat(decided.step.level, decided.step.borders))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.lists(st.integers(1, 60), min_size=1, max_size=2),
    st.sampled_from([0, 10, 50]),
    RATES,
    RATES,
    st.sampled_from([0, 10, 30, 60, 90]),
    st.booleans(),
)
def test_no_plan_with_states_takes_less_than_the_bound(
    sizes: list[int], states: list[int], ns: int, out: int, back: int, percent: int, are_parts: bool
) -> None:
    # given any budget between the least feasible one and what keeping everything takes
    trace, on = training(sizes, states, ns), machine(out, back)
    trace = in_parts(trace, len(states)) if are_parts else trace
    problem = problem_of(trace, on, 0)
    assume(np.prod([1 + len(ticks_for(problem.step, i)) for i in movable(problem).tolist()]) <= 30)
    peak = int(problem.step.level.max())
    least = least_of(trace, on)
    budget = least + (peak - least) * percent // 100

    made = plan(trace, on, budget, "optimal", min_size=1, allow=("swap", "state"))

    # then it holds, its bound is that of every plan, and no budget below the least is met by any
    check(trace, made, on)
    line = simulate(trace, on, made)
    assert line.peak_allocated_bytes <= budget
    assert made.bound is not None
    assert line.step_ns == made.bound.step_ns
    assert made.bound.lower_bound_ns <= min(times_of_all(problem, budget))
    assert not list(times_of_all(problem, least - 1))


def least_of(trace: Trace, on: Machine) -> int:
    try:
        return plan(trace, on, 0, "optimal", min_size=1, allow=("swap", "state")).budget_bytes
    except Infeasible as found:
        return found.least_feasible_bytes


def times_of_all(problem: Problem, budget: int) -> Iterator[int]:
    """The simulated times of all plans that swap saves and states within a budget."""
    step, n, states = problem.step, movable(problem).tolist(), states_on_offer(problem).tolist()
    chosen = [taken for count in range(len(states) + 1) for taken in combinations(states, count)]
    for taken, backs in product(chosen, product(*([None, *ticks_for(step, i).tolist()] for i in n))):
        places = [sorted({step.first_op, int(step.first_read[i]), *step.ticks.tolist()}) for i in taken]
        for state_backs in product(*places):
            pairs = [*zip(taken, state_backs, strict=True), *zip(n, backs, strict=True)]
            swaps = [swap_of(problem, i, back) for i, back in pairs if back is not None]
            made = Plan(
                trace_id=step.trace.id,
                planner="every",
                budget_bytes=budget,
                swaps=tuple(sorted(swaps, key=lambda swap: swap.out_after_op)),
            )
            try:
                check(step.trace, made, problem.machine)
            except InvalidPlan:
                continue
            yield simulate(step.trace, problem.machine, made).step_ns


def swap_of(problem: Problem, n: int, back: int) -> Swap:
    step = problem.step
    out = int(step.saved_at[n]) - 1
    return Swap(storage=int(step.storage[n]), tier="disk", out_after_op=out, back_before_op=back)
