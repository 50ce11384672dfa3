"""Recipes that are closed on demand: one makes again what another one drops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.machine import Machine, Tier
from elbowroom.plan import Plan, Recompute
from elbowroom.planners import check, plan
from elbowroom.planners.optimal.closed_recipes import ANY_OPS, ClosedRecipes
from elbowroom.planners.optimal.pipe_bound import bound_ns
from elbowroom.planners.problem import Problem, movable, peak_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan
from elbowroom.trace import Trace
from tests.core.build import Build, machine
from tests.core.plans import linked_traces

BARE = Machine(name="bare", tiers=(Tier(name="device", capacity_bytes=10**12),), links=())


def linked(layers: int) -> Trace:
    """Layers of 100 bytes and 10 ns, each of which reads the one before; backward reads and frees them in reverse.

    Storage 0 is a parameter of 1 byte. Ops 0 to n-1 make storages 1 to n, op n is a loss, op n+1+k reads n-k.
    """
    build = Build()
    made = [build.storage(1, "parameter")]
    for _ in range(layers):
        storage = build.op(make=100, reads=(made[-1],))
        build.save(storage, idle=False)
        if len(made) > 1:
            build.idle(made[-1])
        made.append(storage)
    build.idle(made[-1])
    build.op()
    build.phase = "backward"
    for storage in reversed(made[1:]):
        build.read(storage)
        build.op(reads=(storage,))
        build.free(storage)
    return build.trace()


def problem_of(trace: Trace, on: Machine, budget_bytes: int) -> Problem:
    tier = on.links[0].lower if on.links else None
    return Problem(
        step=last_step(trace),
        machine=on,
        tier=tier,
        tier_bytes=10**12 if tier else 0,
        budget_bytes=budget_bytes,
        min_size_bytes=1,
    )


def plan_of(trace: Trace, recipes: ClosedRecipes, dropped: set[int], most_ops: int) -> Plan:
    """The plan that drops some storages, within the bytes that it needs."""
    found = tuple(each.option.recompute for each in recipes.of(dropped, most_ops, None))
    made = Plan(trace_id=trace.id, planner="by hand", budget_bytes=2**60, recomputes=found)
    step = last_step(trace)
    return replace(made, budget_bytes=peak_of(step, moves_of_plan(step, made)))


def test_what_is_dropped_is_made_again_for_each_recipe_that_reads_it() -> None:
    # given three layers, all dropped, of which nothing stays that a recipe makes on its way
    trace = linked(3)
    recipes = ClosedRecipes(problem_of(trace, BARE, 0))
    assert recipes.droppable == (1, 2, 3)

    made = plan_of(trace, recipes, {1, 2, 3}, most_ops=-1)

    # then layer 3 takes all three ops, layer 2 two of them, layer 1 one: 60 ns more than the 7 ops of 10 ns
    assert made.recomputes == (
        Recompute(storages=(3,), recipe=(0, 1, 2), before_op=4),
        Recompute(storages=(2,), recipe=(0, 1), before_op=5),
        Recompute(storages=(1,), recipe=(0,), before_op=6),
    )
    check(trace, made)
    assert simulate(trace, BARE, made).step_ns == 130


@pytest.mark.parametrize(
    ("most_ops", "dropped", "step_ns"),
    [
        # layer 2 is read one op after layer 3, so it stays; layer 1 is made a second time
        (1, [(2, 3), (1,)], 110),
        # all of it stays
        (ANY_OPS, [(1, 2, 3)], 100),
    ],
)
def test_what_a_recipe_makes_stays_if_it_is_read_soon(
    most_ops: int, dropped: list[tuple[int, ...]], step_ns: int
) -> None:
    trace = linked(3)
    made = plan_of(trace, ClosedRecipes(problem_of(trace, BARE, 0)), {1, 2, 3}, most_ops)
    assert [each.storages for each in made.recomputes] == dropped
    check(trace, made)
    assert simulate(trace, BARE, made).step_ns == step_ns


def test_what_a_recipe_makes_stays_only_where_there_is_room() -> None:
    # given room for one layer
    trace = linked(3)
    recipes = ClosedRecipes(problem_of(trace, BARE, 0))
    room = np.full(len(last_step(trace).borders), 100, np.int64)

    found = recipes.of({1, 2, 3}, ANY_OPS, room)

    # then the one that is read next stays
    assert [each.option.recompute.storages for each in found] == [(2, 3), (1,)]


def test_recipes_that_need_each_other_meet_a_budget_that_none_alone_meets() -> None:
    # given sixteen layers of 100 bytes in 351 bytes, and nowhere to swap to
    trace = linked(16)

    made = plan(trace, BARE, 351, "optimal", min_size=1)

    # then some recipe makes again what another one drops
    dropped = {storage for each in made.recomputes for storage in each.storages}
    ops = last_step(trace).trace.ops
    nested = [s for each in made.recomputes for op in each.recipe for s in ops[op].writes if s not in each.storages]
    assert dropped.intersection(nested)
    assert simulate(trace, BARE, made).peak_allocated_bytes <= 351


@settings(max_examples=150, deadline=None)
@given(linked_traces(), st.data(), st.sampled_from([10**7, 10**9, 10**10]))
def test_any_set_may_be_dropped_and_no_such_plan_is_faster_than_the_bound(
    trace: Trace, data: st.DataObject, rate: int
) -> None:
    # given any set of storages, and more or less of them that stays
    on = machine(rate, rate)
    recipes = ClosedRecipes(problem_of(trace, on, 0))
    dropped = data.draw(st.sets(st.sampled_from(recipes.droppable))) if recipes.droppable else set[int]()
    most_ops = data.draw(st.sampled_from([-1, 0, 1, 3, ANY_OPS]))

    made = plan_of(trace, recipes, dropped, most_ops)

    # then the plan drops all of them, may run, and takes at least what the bound for its bytes says
    check(trace, made, on)
    assert {storage for each in made.recomputes for storage in each.storages} == dropped
    problem = problem_of(trace, on, made.budget_bytes)
    least_ns = int(problem.step.at_ns[-1]) + bound_ns(problem, movable(problem))
    assert simulate(trace, on, made).step_ns >= least_ns
