"""The named baselines: what each of them swaps, when it comes back, its knobs, and budgets that it does not meet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible, UsageError
from elbowroom.plan import Plan
from elbowroom.planners import MEANS, PLANNERS, check, plan
from elbowroom.planners.knobs import options_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.trace import Choice, Trace
from tests.core.build import Build, chain, machine, traces
from tests.core.plans import linked_traces
from tests.core.test_recompute import linked

OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("vdnn", {"policy": "all"}),
    ("vdnn", {"policy": "conv"}),
    ("vdnn", {}),
    ("vdnn", {"policy": "all", "algorithms": "m"}),
    ("tflms", {}),
    ("tflms", {"swapin_groupby": 3, "serialization": False}),
    ("tflms", {"swapout_threshold": 2, "swapin_ahead": 3}),
    ("tflms", {"sync_mode": 2}),
    ("capuchin", {}),
    ("capuchin", {"feedback_percent": 50, "rounds": 3}),
    ("threshold", {"size_bytes": 20}),
    ("lms", {"size_bytes": 0}),
    ("lms", {"size_bytes": 0, "limit_bytes": 30}),
]


def made(
    trace: Trace, budget: int, planner: str, options: Mapping[str, object] | None = None, rate: int = 10**9
) -> Plan:
    return plan(trace, machine(rate, rate), budget, planner, min_size=1, options=options, allow=MEANS)


def swaps(trace: Trace, budget: int, planner: str, rate: int = 10**9, **options: object) -> dict[int, int]:
    """What is swapped, and before which op it comes back."""
    found = made(trace, budget, planner, options, rate)
    check(trace, found, machine(rate, rate))
    return {swap.storage: swap.back_before_op for swap in found.swaps}


def net(kinds: str, size: int = 10, ns: int = 10) -> Trace:
    """Layers "c" (convolution) and "r" (anything else), each of which reads and saves what the one before it made.

    Storage 0 is made by op 0. Layer i, from 1 on, is op i, reads and saves storage i - 1 and makes storage i. Backward
    op n + k, n ops being forward, reads what layer n - 1 - k saved and frees it; the last layer's output is not saved.
    """
    build = Build()
    before = build.op("aten.cat", ns, make=size)
    saved: list[int] = []
    for kind in kinds:
        name = "aten.cudnn_convolution" if kind == "c" else "aten.relu"
        saved.append(before)
        before = build.op(name, ns, make=size, reads=(before,))
        build.save(saved[-1])
    build.free(before)
    build.phase = "backward"
    for storage in reversed(saved):
        build.read(storage)
        build.op("aten.backward", ns, reads=(storage,))
        build.free(storage)
    return build.trace()


# the planners


def test_threshold_swaps_what_is_large_and_back_when_it_is_read() -> None:
    # given layers of 40, 100, 60 and 100 bytes, read back at positions 7, 6, 5 and 4; the last one is read at once
    trace = chain([40, 100, 60, 100])

    assert swaps(trace, 300, "threshold", size_bytes=60) == {1: 6, 2: 5}
    assert swaps(trace, 300, "threshold", size_bytes=61) == {1: 6}
    # a size above all of them swaps nothing
    assert swaps(trace, 300, "threshold", size_bytes="1KiB") == {}


def test_lms_swaps_what_was_used_longest_ago_and_only_at_its_limit() -> None:
    # given 4 layers of 10 bytes, 40 at the turn
    trace = chain([10, 10, 10, 10])

    # then a limit of 40 swaps nothing, one of 30 the oldest one, one of 20 the two oldest
    assert swaps(trace, 40, "lms", size_bytes=0) == {}
    assert swaps(trace, 30, "lms", size_bytes=0) == {0: 7}
    assert swaps(trace, 40, "lms", size_bytes=0, limit_bytes=20) == {0: 7, 1: 6}
    # and nothing below its size is touched
    assert swaps(trace, 40, "lms", size_bytes=11, limit_bytes=20) == {}


def test_tflms_swaps_above_its_threshold_and_back_so_many_ops_ahead() -> None:
    # given 4 layers: storage i is made by op i and read by op 7 - i, a distance of 7 - 2 i: 7, 5, 3 and 1
    trace = chain([10, 10, 10, 10])

    assert swaps(trace, 40, "tflms", swapout_threshold=4, swapin_ahead=1) == {0: 7, 1: 6}
    assert swaps(trace, 40, "tflms", swapout_threshold=5, swapin_ahead=1) == {0: 7}
    # 2 ahead: once op 5 has ended for storage 0, which op 7 reads
    assert swaps(trace, 40, "tflms", swapout_threshold=4, swapin_ahead=2) == {0: 6, 1: 5}
    # waiting for each copy means that it starts when it is read
    assert swaps(trace, 40, "tflms", swapout_threshold=4, swapin_ahead=2, sync_mode=2) == {0: 7, 1: 6}


def test_tflms_brings_reads_that_are_close_back_together() -> None:
    # given reads at ops 7, 6 and 5 of storages 0, 1 and 2: groups of 1 level join 5 with 6, and 7 is alone
    trace = chain([10, 10, 10, 10])

    assert swaps(trace, 40, "tflms", swapout_threshold=2, swapin_ahead=1, swapin_groupby=1) == {0: 7, 1: 5, 2: 5}


def test_tflms_counts_levels_of_the_graph_where_ops_are_not_serialised() -> None:
    # given op 0, whose storage ops 1 to 3 read one after the other without reading each other's, so all on level 1
    build = Build()
    kept = build.save(build.op("forward", make=10))
    for _ in range(3):
        build.op("forward", reads=(kept,), temporary=10)
    build.phase = "backward"
    build.op("forward", temporary=10)
    build.read(kept)
    build.op("backward", reads=(kept,))
    build.free(kept)
    build.idle(kept)
    trace = Build(
        ops=build.ops,
        storages=build.storages,
        events=build.events,
        saves={kept: build.saves[kept].__class__(storage=kept, saved_at=1, idle_from=4, read_at=(5,))},
    ).trace()

    # then the read is 5 ops away from op 0, but one level
    assert swaps(trace, 20, "tflms", swapout_threshold=4, swapin_ahead=1) == {kept: 5}
    assert swaps(trace, 20, "tflms", swapout_threshold=4, swapin_ahead=1, serialization=False) == {}
    assert swaps(trace, 20, "tflms", swapout_threshold=0, swapin_ahead=1, serialization=False) == {kept: 5}


def test_tflms_tunes_its_knobs_with_the_simulator() -> None:
    # given 4 layers of 10 bytes, copies of 10 ns, as long as an op, and 30 bytes allowed
    trace = chain([10, 10, 10, 10])

    tuned = swaps(trace, 30, "tflms")

    # then storage 0 alone goes, as a threshold of 5 is the largest that meets the budget, and it is back in time
    assert list(tuned) == [0]
    assert simulate(trace, machine(), made(trace, 30, "tflms")).stall_ns == 0
    assert simulate(trace, machine(), made(trace, 30, "tflms", {"swapin_ahead": 1})).stall_ns == 10


def test_vdnn_swaps_the_inputs_of_layers_and_fetches_within_its_window() -> None:
    # given layers c r c r c on storages 0 to 4; forward is ops 0 to 5, and op 6 + k reads storage 4 - k
    trace = net("crcrc")

    # then under "all" each backward pass fetches one layer ahead; storage 4 is read at once and cannot move
    assert swaps(trace, 60, "vdnn", policy="all") == {0: 9, 1: 8, 2: 7, 3: 6}
    # and under "conv" the window of the pass at 6 holds storage 3, which stayed, and 2; that at 8 holds 1 and 0
    assert swaps(trace, 60, "vdnn", policy="conv") == {0: 8, 2: 6}


def test_vdnn_looks_no_further_than_the_next_convolution() -> None:
    # given c c r r with storages 0 and 1 swapped under "conv", read at 8 and 7; a swap of all but the last under "all"
    trace = net("ccrr")

    # then 1 is fetched from 5, the window going past storage 2, and 0 from 6, where 1 is fetched already
    assert swaps(trace, 60, "vdnn", policy="conv") == {0: 7, 1: 5}


def test_vdnn_lets_optimizer_states_alone() -> None:
    # given an optimizer state that is idle but in the last op, beside two layers
    build = Build()
    state = build.storage(50, "optimizer_state")
    first = build.op("aten.cat", make=10)
    second = build.op("aten.cudnn_convolution", make=10, reads=(first,))
    build.save(first)
    build.phase = "backward"
    build.op("aten.backward", reads=(second,))
    build.free(second)
    build.read(first)
    build.op("aten.backward", reads=(first,))
    build.free(first)
    build.phase = "optimizer"
    build.op("aten.add_", reads=(state,), writes=(state,))
    trace = build.trace()

    assert list(swaps(trace, 70, "vdnn", policy="all")) == [first]


def test_vdnn_dyn_takes_the_first_policy_that_fits() -> None:
    # given r r c r of 10 bytes, which hold 50 at most at op 4
    trace = net("rrcr")

    assert swaps(trace, 50, "vdnn") == {}
    assert set(swaps(trace, 40, "vdnn")) == {2}
    assert set(swaps(trace, 30, "vdnn")) == {0, 1, 2}


def test_vdnn_runs_convolutions_with_the_fastest_or_the_smallest_algorithm() -> None:
    # given two layers of 10 bytes; the first, a convolution, takes 10 ns with 30 bytes of scratch, 20 ns with 5, 40 ns
    # with none
    build = Build()
    first = build.op("aten.cat", 10, make=10)
    second = build.op("aten.cudnn_convolution", 20, make=10, reads=(first,))
    build.free(build.storage(5, "workspace"))
    build.save(first)
    build.phase = "backward"
    build.read(first)
    build.op("aten.backward", 10, reads=(first,))
    build.free(second)
    build.free(first)
    trace = build.trace()
    choices = tuple(
        Choice(name=name, duration_ns=ns, workspace_bytes=size)
        for name, ns, size in (("recorded", 20, 5), ("fast", 10, 30), ("small", 40, 0))
    )
    ops = (trace.ops[0], replace(trace.ops[1], choices=choices), *trace.ops[2:])
    trace = replace(trace, ops=ops)

    # then "p" takes the fast and "m" the small one, and "dyn" the fastest that fits: in 50, 25 and 20 bytes
    def chosen(budget: int, **options: object) -> list[str]:
        found = made(trace, budget, "vdnn", options)
        check(trace, found, machine())
        assert simulate(trace, machine(), found).peak_allocated_bytes <= budget
        return [algorithm.choice for algorithm in found.algorithms]

    assert chosen(99, policy="all") == ["fast"]
    assert chosen(99, policy="all", algorithms="m") == ["small"]
    assert [chosen(budget) for budget in (50, 49, 25, 24, 20)] == [
        ["fast"],
        ["recorded"],
        ["recorded"],
        ["small"],
        ["small"],
    ]
    only_swaps = plan(trace, machine(), 99, "vdnn", min_size=1, allow=("swap",))
    assert only_swaps.algorithms == ()


def test_capuchin_recomputes_what_costs_less_than_a_swap_that_shows() -> None:
    # given 4 layers of 100 bytes, ops of 10 ns, op i making storage i + 1 of what op i - 1 made: a copy takes 100 ns,
    # so that none is hidden, and each storage is rebuilt by one op from the one before it
    trace = linked((100, 100, 100, 100))

    found = made(trace, 310, "capuchin")

    # then 3 and 1 are rebuilt, each in 10 ns, where a swap would show at least 200 - 50: all save as much a second, so
    # the one that is read first goes first; it does not give enough, as op 3 still reads it, and it needs 2 to be kept
    check(trace, found, machine())
    assert found.swaps == ()
    assert [each.storages for each in found.recomputes] == [(3,), (1,)]
    assert simulate(trace, machine(), found).step_ns == 80 + 2 * 10
    # and without recomputes it swaps
    only_swaps = plan(trace, machine(), 310, "capuchin", min_size=1, allow=("swap",))
    assert (len(only_swaps.swaps), len(only_swaps.recomputes)) == (1, 0)


def test_capuchin_takes_the_largest_free_time_first() -> None:
    # given 4 layers of 10, 10, 10 and 10 bytes, ops of 10 ns, copies of 10 ns: storage 0 is idle from position 1 to 7,
    # 60 ns, of which 40 are free; storage 1 from 2 to 6, 20 free; storage 2 from 3 to 5, 0 free
    trace = chain([10, 10, 10, 10])

    assert list(swaps(trace, 30, "capuchin")) == [0]
    assert list(swaps(trace, 20, "capuchin")) == [0, 1]
    assert swaps(trace, 40, "capuchin") == {}


def test_capuchin_starts_a_copy_ahead_and_then_earlier_where_compute_waited() -> None:
    # given a copy of 15 ns and ops of 10 ns: its trigger lies 15 ns ahead of the read at position 7, so at 5, where
    # storages 1 and 2 are there and 25 bytes are held with it; in 20 it must wait until 6
    trace = chain([15, 5, 5, 5])
    assert swaps(trace, 25, "capuchin") == {0: 5}
    assert swaps(trace, 20, "capuchin") == {0: 6}

    # and two storages of 40 bytes read one after the other: both triggers start as the ops of 50 ns ahead of them
    # do, but the second waits for the lane
    slow = chain([40, 40, 40, 40, 40], ns=50)
    without = simulate(slow, machine(), made(slow, 160, "capuchin", {"rounds": 0})).step_ns
    assert simulate(slow, machine(), made(slow, 160, "capuchin")).step_ns <= without


def test_recompute_blocks_keeps_what_lies_between_segments_and_rebuilds_the_rest() -> None:
    # given 8 layers, op i making storage i + 1 of what op i - 1 made, and backward op 8 + k reading storage 8 - k
    trace = linked((10,) * 8)

    # then of 2 segments of 4 ops each, the first rebuilds 1, 2 and 3 before op 13, which reads 3, and keeps 4, which
    # the second one reads; that keeps 7 and 8, which are still in use when the first of them is read
    assert recomputes(trace, 2) == [((5, 6), (4, 5), 10), ((1, 2, 3), (0, 1, 2), 13)]
    # as many segments as the square root of 8, rounded up: 3, of ops 0 to 2, 3 to 5 and 6 and 7
    assert recomputes(trace, "sqrt") == [((4, 5), (3, 4), 11), ((1, 2), (0, 1), 14)]
    # and all of the modules are one called "net", with no number in it: no blocks
    assert recomputes(trace, "every") == []


def recomputes(trace: Trace, segments: object) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    found = made(trace, 10**6, "recompute_blocks", {"segments": segments})
    check(trace, found)
    return [(each.storages, each.recipe, each.before_op) for each in found.recomputes]


def test_recompute_blocks_takes_the_members_of_lists_of_modules_as_blocks() -> None:
    # given the same 8 layers, 4 of them in each of two blocks
    trace = linked((10,) * 8)
    ops = [replace(op, module=f"net.layers.{min(i, 15 - i) // 4}.conv") for i, op in enumerate(trace.ops)]
    trace = replace(trace, ops=tuple(ops))

    assert recomputes(trace, "every") == recomputes(trace, 2)
    # 10 bytes of parameters and 80 of layers, less 1, 2, 3 and 5, 6, which are away when op 7 makes the last one
    needed = made(trace, 10**6, "recompute_blocks", {"segments": "every"})
    assert simulate(trace, machine(), needed).peak_allocated_bytes == 40


@settings(max_examples=100, deadline=None)
@given(
    linked_traces(),
    st.sampled_from(
        [
            *(("recompute_blocks", {"segments": each}) for each in ("sqrt", "every", 1, 2, 3, 5)),
            ("capuchin", {}),
            ("vdnn", {}),
        ]
    ),
    st.integers(0, 100),
)
def test_what_recomputes_and_chooses_algorithms_makes_plans_that_pass(
    trace: Trace, asked: tuple[str, dict[str, object]], percent: int
) -> None:
    planner, options = asked
    budget = int(last_step(trace).level.max()) * percent // 100
    try:
        found = made(trace, budget, planner, options)
    except Infeasible as problem:
        found = made(trace, problem.least_feasible_bytes, planner, options)
    check(trace, found, machine())
    assert simulate(trace, machine(), found).peak_allocated_bytes <= found.budget_bytes


@settings(max_examples=150, deadline=None)
@given(traces(), st.sampled_from(OPTIONS), st.sampled_from([10**7, 10**8, 10**9, 10**10]), st.integers(0, 100))
def test_a_baseline_makes_a_plan_within_the_budget_or_names_the_least_it_meets(
    trace: Trace, asked: tuple[str, dict[str, object]], rate: int, percent: int
) -> None:
    # given any budget up to what keeping everything takes
    planner, options = asked
    budget = int(last_step(trace).level.max()) * percent // 100
    try:
        found = made(trace, budget, planner, options, rate)
    except Infeasible as problem:
        # then what it names as the least that it meets, it meets
        found = made(trace, problem.least_feasible_bytes, planner, options, rate)
    check(trace, found, machine(rate, rate))
    assert found.budget_bytes >= budget
    assert simulate(trace, machine(rate, rate), found).peak_allocated_bytes <= found.budget_bytes


@pytest.mark.parametrize("planner", list(PLANNERS))
def test_a_machine_without_a_lower_tier_gets_the_empty_plan_or_none(planner: str) -> None:
    from elbowroom.machine import Machine, Tier

    bare = Machine(name="bare", tiers=(Tier(name="device", capacity_bytes=1000),), links=())
    trace = chain([100, 100, 100])
    assert plan(trace, bare, 300, planner, min_size=1, allow=("swap",)).swaps == ()
    with pytest.raises(Infeasible):
        plan(trace, bare, 299, planner, min_size=1, allow=("swap",))


def test_a_baseline_that_ignores_the_budget_says_what_it_needs() -> None:
    # given 3 layers of 100 bytes: with nothing above 1 KiB to swap, 300 are held
    with pytest.raises(Infeasible) as caught:
        made(chain([100, 100, 100]), 250, "threshold", {"size_bytes": "1KiB"})
    assert caught.value.least_feasible_bytes == 300
    assert (
        "'threshold' as it was asked swaps 0 of 3 saved storages and recomputes 0.\n"
        "Give at least that budget or other options, or take another planner."
    ) in str(caught.value)


# their options


def test_the_options_of_every_planner_are_these() -> None:
    found = {name: list(options_of(planner)) for name, planner in PLANNERS.items() if options_of(planner)}
    assert found == {
        "recompute_blocks": ["segments"],
        "vdnn": ["policy", "algorithms"],
        "tflms": ["swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode", "serialization"],
        "capuchin": ["feedback_percent", "rounds"],
        "threshold": ["size_bytes"],
        "lms": ["limit_bytes", "size_bytes"],
    }


def test_options_may_be_text_as_on_a_command_line() -> None:
    trace = chain([10, 10, 10, 10])
    as_text = {"swapout_threshold": "4", "swapin_ahead": "1", "serialization": "true", "sync_mode": "2"}
    found = made(trace, 40, "tflms", as_text)
    assert {swap.storage: swap.back_before_op for swap in found.swaps} == {0: 7, 1: 6}
    assert swaps(trace, 30, "lms", limit_bytes="none", size_bytes="1 B") == {0: 7}


@pytest.mark.parametrize(
    ("planner", "options", "message"),
    [
        (
            "tflms",
            {"ahead": 4},
            "options: given 'ahead' for planner 'tflms'; allowed are swapout_threshold, swapin_ahead, swapin_groupby, "
            "sync_mode, serialization; leave it out or correct it",
        ),
        ("keep_all", {"x": 1}, "options: given 'x' for planner 'keep_all'; it has none; leave it out or correct it"),
        (
            "tflms",
            {"swapin_ahead": -1},
            "options: given swapin_ahead=-1 for planner 'tflms'; allowed is a whole number from 0 on, or None; the "
            "default is None",
        ),
        (
            "tflms",
            {"sync_mode": 1},
            "options: given sync_mode=1 for planner 'tflms'; allowed is 0, 2; the default is 0",
        ),
        (
            "tflms",
            {"serialization": 1},
            "options: given serialization=1 for planner 'tflms'; allowed is True, False; the default is True",
        ),
        (
            "vdnn",
            {"policy": "some"},
            "options: given policy='some' for planner 'vdnn'; allowed is 'all', 'conv', 'dyn'; the default is 'dyn'",
        ),
        (
            "threshold",
            {"size_bytes": 1.5},
            "options: given size_bytes=1.5 for planner 'threshold'; allowed is a whole number from 0 on or a size such "
            "as 8MiB; the default is 8388608",
        ),
    ],
)
def test_an_option_that_is_not_there_or_a_value_that_is_not_allowed_is_refused(
    planner: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        made(chain([1]), 1, planner, options)
