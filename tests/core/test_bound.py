"""The lower bound of the pipe program with recomputes."""

from __future__ import annotations

from elbowroom.plan import Bound, Plan
from elbowroom.planners import plan
from elbowroom.planners.optimal.pipe_recomputes import makers_on_offer
from elbowroom.step.last_step import last_step
from tests.core.build import Build, machine


def within_200(build: Build, saved: int) -> Plan:
    """The plan for 200 bytes: an op needs them all before the storage is read; the link takes 100,000 ns."""
    build.op(temporary=200)
    build.phase = "backward"
    build.read(saved)
    build.op(reads=(saved,))
    build.free(saved)
    return plan(build.trace(), machine(out=10**6, back=10**6), 200, "optimal", min_size=1)


def test_a_recipe_is_priced_with_what_the_step_has_freed_by_then() -> None:
    # given a storage made in 10 ns from one of 30 ns that the step frees at once
    build = Build()
    first = build.op(make=100, ns=30)
    second = build.op(make=100, reads=(first,))
    build.save(second)
    build.free(first)

    made = within_200(build, second)

    # then both ops run again: 30 + 10 + 10 + 10 ns of the step and 30 + 10 more, which no plan can do without
    assert len(made.recomputes) == 1
    assert made.bound == Bound(machine="test", step_ns=100, lower_bound_ns=100)


def test_a_recipe_is_priced_with_all_ops_that_write_the_storage() -> None:
    # given a storage made in 10 ns and changed in place in 40 ns, as by relu_
    build = Build()
    made_by_op = build.op(make=100)
    build.op(reads=(made_by_op,), writes=(made_by_op,), ns=40)
    build.save(made_by_op)

    found = within_200(build, made_by_op)

    # then both ops run again: 10 + 40 + 10 + 10 ns of the step and 10 + 40 more, which no plan can do without
    assert len(found.recomputes) == 1
    assert found.bound == Bound(machine="test", step_ns=120, lower_bound_ns=120)


def test_a_storage_that_no_recipe_can_rebuild_is_not_on_offer() -> None:
    # given a storage that an op of another phase, which may not run again, changes in place before it is saved
    build = Build()
    changed = build.op(make=100)
    build.phase = "backward"
    build.op(reads=(changed,), writes=(changed,))
    build.save(changed)
    build.op(temporary=200)
    build.read(changed)
    build.op(reads=(changed,))
    build.free(changed)

    # then nothing is offered
    assert not len(makers_on_offer(last_step(build.trace()), 1).n)
