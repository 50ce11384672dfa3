"""Planners: feasible budgets, the choice of swaps, when they come back, and what an infeasible budget is told."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible, UsageError
from elbowroom.machine import Machine, Tier
from elbowroom.plan import Plan, Swap
from elbowroom.planners import PLANNERS, Problem, check, plan
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.trace import Event, Op, Step, Storage, Trace
from tests.core.build import Build, chain, machine, traces

pytestmark = pytest.mark.long

RATES = st.sampled_from([10**7, 10**8, 10**9, 10**10, 10**12])


def keep_all_peak(trace: Trace) -> int:
    return int(last_step(trace).level.max())


def least_budget(trace: Trace, on: Machine, planner: str = "swap_greedy") -> int:
    """The least feasible budget; 0 where any will do."""
    try:
        plan(trace, on, 0, planner, min_size=1)
    except Infeasible as problem:
        return problem.least_feasible_bytes
    return 0


def infeasible(trace: Trace, budget: int, planner: str = "swap_greedy", on: Machine | None = None) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        plan(trace, on or machine(), budget, planner, min_size=1)
    return caught.value


def test_the_planners_are_these() -> None:
    assert list(PLANNERS) == [
        "keep_all",
        "swap_all",
        "swap_greedy",
        "swap_states",
        "optimal",
        "recompute_blocks",
        "vdnn",
        "tflms",
        "capuchin",
        "threshold",
        "lms",
        "on_demand",
    ]


def test_a_planner_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        UsageError, match="given 'best'; allowed is one of keep_all, swap_all, swap_greedy, swap_states, optimal, "
    ):
        plan(chain([1]), machine(), 1, "best")


def test_means_that_are_not_there_are_refused() -> None:
    means: Any = ("swap", "teleport")
    allowed = "swap, recompute, state, gradient, parameter, algorithm"
    with pytest.raises(UsageError, match=f"given 'teleport'; allowed are {allowed}"):
        plan(chain([1]), machine(), 1, allow=means)
    with pytest.raises(UsageError, match="time_limit_s: given 0; allowed is more than 0"):
        plan(chain([1]), machine(), 1, time_limit_s=0)


def test_a_planner_of_swaps_moves_nothing_where_swaps_are_not_allowed() -> None:
    assert infeasible_without_swaps(chain([100, 100])).least_feasible_bytes == 200


def infeasible_without_swaps(trace: Trace) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        plan(trace, machine(), 199, "swap_all", min_size=1, allow=("recompute",))
    return caught.value


def asked(on: Machine, budget: str, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """The problem that a planner is given."""
    given: list[Problem] = []

    def planner(problem: Problem) -> Plan:
        given.append(problem)
        return Plan(trace_id=problem.step.trace.id, planner="none", budget_bytes=problem.budget_bytes)

    monkeypatch.setitem(PLANNERS, "none", planner)
    plan(chain([1]), on, budget, "none", allow=("algorithm", "swap"), time_limit_s=2.5)
    return given[0]


def test_a_problem_says_what_every_lower_tier_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a device over 1000 bytes of host memory and 5000 of disk
    disk = machine()
    host, below = Tier(name="host", capacity_bytes=1000), Tier(name="disk", capacity_bytes=5000)
    links = (replace(disk.links[0], lower="host"), replace(disk.links[0], upper="host"))
    three = replace(disk, tiers=(disk.tiers[0], host, below), links=links)

    # then what is not named is 90 % of the tier, and all of the host's may be pinned
    problem = asked(three, "10", monkeypatch)
    assert problem.tiers == {"host": 900, "disk": 4500, "pinned": 900}
    assert (problem.tier, problem.tier_bytes) == ("host", 900)
    assert problem.allow == ("swap", "algorithm")
    assert problem.time_limit_s == 2.5

    # and what is named is that, at most what the tier holds
    problem = asked(three, "device=10,host=800,pinned=300,disk=9000", monkeypatch)
    assert problem.tiers == {"host": 800, "disk": 5000, "pinned": 300}
    assert problem.tier_bytes == 300
    with pytest.raises(
        UsageError, match=re.escape("given pinned=900 B (900 bytes) where the host may hold 800 B (800 bytes)")
    ):
        asked(three, "device=10,host=800,pinned=900", monkeypatch)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            "2TB",
            "budget: given 1.82 TiB for the device of machine 'test', which has 931.32 GiB (1000000000000 bytes), 0 B "
            "of them outside the allocator; allowed is at most what it has, which is less than the number a "
            "card is sold with; write auto for what is free",
        ),
        (
            "10,host=1GiB",
            "budget: given host=1.00 GiB, and machine 'test' has no host tier below its device; its tiers are device, "
            "disk; leave host out",
        ),
        (
            "10,pinned=1GiB",
            "budget: given pinned=1.00 GiB, and machine 'test' has no host tier below its device; its tiers are "
            "device, disk; leave pinned out",
        ),
    ],
)
def test_a_budget_that_contradicts_the_machine_is_refused(budget: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        plan(chain([10]), machine(), budget)


def test_a_machine_without_a_link_to_its_lower_tier_is_refused() -> None:
    cut = replace(machine(), links=())
    message = "machine: 'test' has a disk tier and no link from its device to it (its links: none); allowed is"
    with pytest.raises(UsageError, match=re.escape(message)):
        plan(chain([10]), cut, 10)


def test_a_budget_of_nothing_names_the_least_that_can_be_met() -> None:
    problem = infeasible(chain([100, 100]), 0)
    assert (problem.budget_bytes, problem.least_feasible_bytes) == (0, 100)


def test_where_the_step_fits_nothing_is_moved() -> None:
    trace = chain([100, 100, 100])
    for planner in ("keep_all", "swap_greedy"):
        assert plan(trace, machine(), 300, planner, min_size=1) == Plan(
            trace_id=trace.id, planner=planner, budget_bytes=300
        )


def test_keep_all_names_the_peak_as_the_least_budget() -> None:
    problem = infeasible(chain([100, 100, 100]), 299, "keep_all")
    assert (problem.budget_bytes, problem.least_feasible_bytes) == (299, 300)
    assert "Swap with planner 'swap_greedy'" in str(problem)


def test_swap_greedy_takes_what_idles_longest_and_brings_it_back_in_time() -> None:
    # given 4 layers of 5 bytes, 20 at the turn, ops of 10 ns, a byte a ns, and 15 bytes allowed
    trace = chain([5, 5, 5, 5])

    made = plan(trace, machine(), 15, min_size=1)

    # then storage 0 goes; its copy takes 5 ns, so the tick before op 6, 10 ns before its read at position 7, would
    # do; three times that is the most a swap back may start ahead for free, and at position 6 there is room:
    # ops 5 (storages 1 and 2, freed) and 6 hold 10 at most
    assert len(made.swaps) == 1
    assert made.swaps[0].storage == 0
    assert made.swaps[0].out_after_op == 0
    assert made.swaps[0].back_before_op in (5, 6)
    line = simulate(trace, machine(), made)
    assert (line.step_ns, line.peak_allocated_bytes) == (80, 15)


def test_a_swap_back_waits_for_room() -> None:
    # given a layer of 50 bytes that takes 100 ns to come back, and a backward op that needs the room until then
    build = Build()
    first = build.save(build.op(make=50, ns=100))
    second = build.save(build.op(make=50, ns=100))
    build.read(second)
    build.op(ns=100, temporary=50)
    build.free(second)
    build.read(first)
    build.op(ns=100)
    trace = build.trace()

    # when 100 bytes are allowed: op 2 needs second and temporary, so first comes back on demand, at position 3
    made = plan(trace, machine(out=10**9, back=5 * 10**8), 100, "swap_greedy", min_size=1)

    assert made.swaps == (Swap(storage=first, tier="disk", out_after_op=0, back_before_op=3),)


def test_small_storages_are_kept() -> None:
    trace = chain([100, 10, 100, 10])
    made = plan(trace, machine(), 130, min_size=50)
    assert {swap.storage for swap in made.swaps} <= {0, 2}
    with pytest.raises(Infeasible, match="those of 101 B or more"):
        plan(trace, machine(), 130, min_size=101)


def test_budgets_may_be_text() -> None:
    trace = chain([2**20, 2**20, 2**20])
    assert plan(trace, machine(), "2MiB").budget_bytes == 2 * 2**20
    # the device of these tests holds 10**12 bytes, 1000 of them outside the allocator; auto leaves a tenth
    assert plan(trace, machine(), "50%").budget_bytes == 5 * 10**11
    assert plan(trace, machine(outside=1000), "auto").budget_bytes == 9 * (10**12 - 1000) // 10


def test_the_budget_of_the_tier_below_is_kept() -> None:
    # given 4 layers of 100 bytes: one may move to the 100 bytes of disk allowed
    trace = chain([100, 100, 100, 100])
    assert len(plan(trace, machine(), "300,disk=100", "swap_greedy", min_size=1).swaps) == 1
    with pytest.raises(Infeasible) as caught:
        plan(trace, machine(), "200,disk=100", "swap_greedy", min_size=1)
    assert caught.value.least_feasible_bytes == 300


def test_a_machine_without_a_lower_tier_can_only_keep() -> None:
    bare = Machine(name="bare", tiers=(Tier(name="device", capacity_bytes=1000),), links=())
    trace = chain([100, 100, 100])
    assert plan(trace, bare, 300, min_size=1).swaps == ()
    problem = infeasible(trace, 299, on=bare)
    assert problem.least_feasible_bytes == 300
    assert "Machine 'bare' has no tier below its device to swap to" in str(problem)


def test_infeasible_says_what_holds_the_memory_and_what_to_do() -> None:
    # given 10 bytes of parameters and 3 layers of 100, 40 and 60 bytes behind a temporary of 50 each: with all but the
    # last one away, op 0 needs 10 + 100, op 1 10 + 50 (40 after), op 2 10 + 60, op 3 10 + 60 + 50, op 5 10 + 100 + 50
    trace = chain([100, 40, 60], base=10, temporary=50)

    problem = infeasible(trace, 159)

    assert (problem.budget_bytes, problem.least_feasible_bytes) == (159, 160)
    # and keeping everything needs 10 + 100 + 40 + 60 + 50 at the last layer
    assert str(problem).splitlines() == [
        "budget: given 159 B (159 bytes).",
        "The least that 'swap_greedy' can meet is 160 B (160 bytes),",
        "0.62 of the 260 B that keeping everything takes.",
        "The most is then held in net (backward, backward):",
        "  activation of net, 100 B",
        "  temporary of net, 50 B",
        "  weights, 10 B",
        "2 of 3 saved storages may move to disk: those of 1 B or more.",
        "Give at least that.",
        "A batch or an input 0.99 times as large meets this budget,",
        "where activations, inputs and temporaries shrink with it.",
    ]
    assert len(plan(trace, machine(), 160, "swap_greedy", min_size=1).swaps) > 0


def test_plans_are_for_the_last_step() -> None:
    trace = chain([100, 100, 100], steps=3)
    made = plan(trace, machine(), 200, min_size=1)
    assert {swap.storage for swap in made.swaps} <= {6, 7, 8}
    assert simulate(trace, machine(), made).peak_allocated_bytes <= 200


def test_the_same_question_gets_the_same_answer() -> None:
    trace = chain([90, 10, 50, 70, 30])
    assert plan(trace, machine(), 140, min_size=1) == plan(trace, machine(), 140, min_size=1)


@settings(max_examples=100, deadline=None)
@given(traces(), RATES, RATES, st.integers(0, 100), st.integers(0, 100))
def test_plans_keep_the_budget_and_greedy_is_never_slower(
    trace: Trace, out: int, back: int, latency: int, percent: int
) -> None:
    # given any budget from the least feasible one to what keeping everything takes
    on = machine(out, back, latency)
    least = least_budget(trace, on)
    budget = least + (keep_all_peak(trace) - least) * percent // 100

    # when both planners plan for it
    steps: dict[str, int] = {}
    for planner in ("swap_all", "swap_greedy"):
        made = plan(trace, on, budget, planner, min_size=1)
        check(trace, made, on)
        line = simulate(trace, on, made)
        assert line.peak_allocated_bytes <= budget
        steps[planner] = line.step_ns

    assert steps["swap_greedy"] <= steps["swap_all"]


@settings(max_examples=100, deadline=None)
@given(traces())
def test_the_least_feasible_budget_is_the_least(trace: Trace) -> None:
    least = least_budget(trace, machine())
    assert plan(trace, machine(), least, min_size=1).budget_bytes == least
    if least:
        assert infeasible(trace, least - 1).least_feasible_bytes == least


@settings(max_examples=50, deadline=None)
@given(traces(), st.integers(0, 200))
def test_a_small_disk_is_never_overfilled(trace: Trace, disk: int) -> None:
    small = machine(disk=disk)
    least = least_budget(trace, small)
    check(trace, plan(trace, small, least, min_size=1), small)


def test_a_large_trace_is_planned_in_a_minute() -> None:
    # given 2 steps of 10,000 ops each, 1,000 storages saved in each, and half of the bytes allowed on a slow link
    build = Build()
    for _ in range(2):
        saved: list[int] = []
        for layer in range(1000):
            for _ in range(4):
                build.op(ns=100, temporary=50)
            saved.append(build.save(build.op(ns=100, make=100 + layer % 7)))
        build.phase = "backward"
        for storage in reversed(saved):
            build.read(storage)
            for _ in range(5):
                build.op(ns=200)
            build.free(storage)
        build.end_step()
    trace = build.trace()
    slow = machine(out=10**8, back=10**8)

    # when it is planned
    started = time.process_time()
    made = plan(trace, slow, keep_all_peak(trace) // 2, min_size=1)
    seconds = time.process_time() - started

    # then it takes less than a minute of one core (8 s on an idle one), and beats swapping everything
    assert seconds < 60  # the bound only catches work that grows with the square of the trace
    everything = plan(trace, slow, made.budget_bytes, "swap_all", min_size=1)
    assert simulate(trace, slow, made).step_ns < simulate(trace, slow, everything).step_ns


def test_a_slow_link_is_spared() -> None:
    # given layers that idle for a long and for a short time, the same bytes, and one of them has to go
    trace = chain([100, 100, 100, 100])
    trace = replace(trace, ops=tuple(replace(op, duration_ns=100) for op in trace.ops))

    made = plan(trace, machine(), 300, min_size=1)

    # then it is the one whose copies, 100 ns each, are hidden behind the ops
    assert [swap.storage for swap in made.swaps] == [0]
    assert simulate(trace, machine(), made).stall_ns == 0


def test_a_plan_is_held_to_the_bytes_that_the_budget_has_for_the_host() -> None:
    # given a GPU above 64 GiB of RAM, of which 40 MiB may be pinned, and a step that must swap 32 + 32 of 128 MiB
    on = replace(Machine.of("t4"), allocator="exact")
    trace = chain([32 * 2**20] * 4)
    most = simulate(trace, on).peak_allocated_bytes

    with pytest.raises(Infeasible, match=r"within 40.0 MiB there"):
        plan(trace, on, f"{most - 64 * 2**20},pinned=40MiB", planner="swap_greedy")

    made = plan(trace, on, f"{most - 32 * 2**20},pinned=40MiB", planner="swap_greedy")
    assert simulate(trace, on, made).peak_of("host", "allocated") == 32 * 2**20


def test_weights_and_states_are_named_by_the_module_that_computes_with_the_weights() -> None:
    # given weights that 'net' reads in forward, an optimizer state made from them, and another storage made by nobody
    ops = (
        Op(name="aten.mm", module="net", phase="forward", reads=(0,), writes=(), duration_ns=1),
        Op(name="aten.zeros_like", module="", phase="optimizer", reads=(0,), writes=(1,), duration_ns=1),
    )
    trace = Trace(
        device="cpu",
        torch_version="2",
        ops=ops,
        storages=(
            Storage(size_bytes=10, category="parameter"),
            Storage(size_bytes=30, category="optimizer_state"),
            Storage(size_bytes=20, category="input"),
        ),
        events=(Event(-1, 0, 10), Event(-1, 2, 20), Event(1, 1, 30)),
        saves=(),
        steps=(Step(0, 2),),
    )
    # when, then
    assert str(infeasible(trace, 59)).splitlines()[3:7] == [
        "The most is then held in no module (optimizer, aten.zeros_like):",
        "  optimizer state of net, 30 B",
        "  input, 20 B",
        "  weights of net, 10 B",
    ]
    # given the lines of the user's code as well
    lined = replace(trace, source_lines=("train.py:7 in step",), op_source_lines=(None, 0))
    said = "The most is then held in no module, train.py:7 in step (optimizer, aten.zeros_like):"
    assert str(infeasible(lined, 59)).splitlines()[3] == said


def test_infeasible_names_the_line_that_made_what_belongs_to_no_module() -> None:
    # given two layers of 100 and 60 bytes that no module made
    trace = chain([100, 60])
    trace = replace(trace, ops=tuple(replace(op, module="") for op in trace.ops))
    lines = (0, *[None] * (len(trace.ops) - 1))
    # when, then: op 0 makes the first
    said = str(infeasible(replace(trace, source_lines=("train.py:9",), op_source_lines=lines), 99))
    assert "  activation at train.py:9, 100 B" in said.splitlines()
