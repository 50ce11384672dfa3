"""What the fuzz (`make fuzz`) found, each as small as it could be made, with what must hold instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import check, plan
from elbowroom.simulate.simulate import simulate
from elbowroom.trace import Trace
from tests.core.build import Build, machine
from tests.fuzz.brute import every_plan, fastest_ns
from tests.fuzz.cases import case
from tests.fuzz.properties import examine

DATA = Path(__file__).parents[1] / "data" / "fuzz"


def test_what_is_never_read_again_is_not_swapped_before_a_recipe_reads_it() -> None:
    # given 30 bytes that are saved and never read back, from which 50 more are made; 100 more in between; a slow link
    build = Build()
    never_read = build.save(build.op(make=30), idle=False)
    made = build.op(reads=(never_read,), make=50)
    build.idle(never_read)
    build.save(made)
    build.op(temporary=100)
    build.phase = "backward"
    build.read(made)
    build.op(reads=(made,))
    build.free(made)
    build.free(never_read)
    trace, on = build.trace(), machine(10**7, 10**7)

    # then at 130 bytes the 50 are made again, and at 100, where the 30 are away for good, they are swapped
    assert plan(trace, on, 130, "optimal", min_size=1).recomputes[0].storages == (made,)
    least = plan(trace, on, 100, "optimal", min_size=1)
    check(trace, least, on)
    assert {swap.storage for swap in least.swaps} == {never_read, made}
    assert least.recomputes == ()


def found(name: str) -> tuple[Trace, Machine]:
    """A case that was found, with what its budget left of the tiers below."""
    return Trace.load(DATA / f"{name}.trace.json"), Machine.load(DATA / f"{name}.machine.json")


def planned(trace: Trace, on: Machine, budget_bytes: int, planner: str = "optimal") -> Plan:
    """A plan that may use all of the tiers below."""
    below = ",".join(f"{tier.name}=100%" for tier in on.tiers[1:])
    return plan(trace, on, f"device={budget_bytes}B,{below}", planner, min_size=1)


def test_what_the_host_holds_only_by_going_on_to_the_disk_is_planned_for() -> None:
    # given a host of 97 bytes above a disk: at 170 bytes recipes are enough, though not all that may move fits the host
    trace, on = found("going_on_to_the_disk")
    ns = {
        planner: simulate(trace, on, planned(trace, on, 170, planner)).step_ns
        for planner in ("recompute_blocks", "optimal")
    }
    assert ns["optimal"] <= ns["recompute_blocks"]


def test_the_least_budget_of_a_small_step_is_that_of_all_its_plans() -> None:
    # given a host without room, one recipe, and an op above all else
    trace, on = found("recipe_without_room_below")
    with pytest.raises(Infeasible) as caught:
        planned(trace, on, 0)
    least = caught.value.least_feasible_bytes

    # then some plan needs the least budget that is named, and none needs less
    assert next(every_plan(trace, on, least - 1), None) is None
    assert planned(trace, on, least).recomputes


def test_of_a_small_step_every_swap_of_a_state_is_played() -> None:
    # given states and a save over a slow link
    trace, on = found("states_one_by_one")
    made = planned(trace, on, 157)
    assert simulate(trace, on, made).step_ns == fastest_ns(trace, on, 157)


def test_of_many_storages_of_which_few_can_move_all_plans_count() -> None:
    # given more windows than plans of them are played, most of which no tier can take
    trace, on = found("many_that_cannot_move")
    with pytest.raises(Infeasible) as caught:
        planned(trace, on, 0)

    # then no plan needs less than what is named
    assert next(every_plan(trace, on, caught.value.least_feasible_bytes - 1), None) is None


def test_no_state_goes_where_there_is_no_room_for_it_beside_the_saves() -> None:
    # given a caching allocator above a host that holds some of the states, or some of the saves
    trace, on = found("states_beyond_the_host")
    with pytest.raises(Infeasible) as caught:
        planned(trace, on, 0)
    check(trace, planned(trace, on, caught.value.least_feasible_bytes), on)


@pytest.mark.parametrize("extra_bytes", [0, 1, 10**6, 5 * 10**6])
def test_a_budget_that_is_named_in_reserved_bytes_is_met_and_so_is_every_larger_one(extra_bytes: int) -> None:
    # given a caching allocator, and no room below the device
    trace, on = found("named_in_reserved_bytes")
    with pytest.raises(Infeasible) as caught:
        planned(trace, on, 0)
    budget = caught.value.least_feasible_bytes + extra_bytes
    assert simulate(trace, on, planned(trace, on, budget)).peak_reserved_bytes <= budget


@pytest.mark.parametrize(
    ("name", "budget", "baseline"),
    [("driver_waits", 405798911, "recompute_blocks"), ("state_away", 116, "swap_states")],
)
def test_a_baseline_that_keeps_the_budget_is_no_faster(name: str, budget: int, baseline: str) -> None:
    # given a caching allocator that waits for the driver at its limit; and states whose swaps alone are enough
    trace, on = found(name)
    ns = [simulate(trace, on, planned(trace, on, budget, each)).step_ns for each in ("optimal", baseline)]
    assert ns[0] <= ns[1]


def test_a_baseline_that_needs_more_than_the_budget_at_any_of_its_tries_says_what_it_needs() -> None:
    # given 120 MiB, within which `swap_states` allocates too much, however little it is asked to allocate
    trace, on = found("least_above_the_budget")
    # when
    with pytest.raises(Infeasible) as error:
        planned(trace, on, 120 * 2**20, "swap_states")
    # then what it names can be met
    least = error.value.least_feasible_bytes
    assert simulate(trace, on, planned(trace, on, least, "swap_states")).peak_reserved_bytes <= least


def test_what_a_baseline_names_in_reserved_bytes_is_what_it_tries_whatever_the_budget() -> None:
    # given a budget that `capuchin` does not meet with any of its tries
    trace, on = found("least_of_a_baseline")
    with pytest.raises(Infeasible) as error:
        planned(trace, on, 164114431, "capuchin")
    # when it is given what it named
    least = error.value.least_feasible_bytes
    made = planned(trace, on, least, "capuchin")
    # then
    assert simulate(trace, on, made).peak_reserved_bytes <= least


def test_where_the_tiers_below_hold_next_to_nothing_a_least_budget_is_named_and_can_be_met() -> None:
    # given a host and a disk that cannot hold what may move
    trace, on = found("little_room_below")
    with pytest.raises(Infeasible) as error:
        planned(trace, on, 0)
    # when
    least = error.value.least_feasible_bytes
    made = planned(trace, on, least)
    # then
    assert simulate(trace, on, made).peak_allocated_bytes <= least


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(140, id="what lies there before the steps is beyond the limit"),
        pytest.param(367, id="a part of a page is beyond the limit"),
        pytest.param(1813, id="a baseline has a recipe that is not on offer"),
    ],
)
def test_what_was_broken_for_a_seed_holds(seed: int) -> None:
    examine(case(seed))
