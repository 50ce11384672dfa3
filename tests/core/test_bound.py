"""The lower bound of the pipe program with recomputes."""

from __future__ import annotations

from elbowroom.plan import Bound
from elbowroom.planners import plan
from tests.core.build import Build, machine


def test_a_recipe_is_priced_with_what_the_step_has_freed_by_then() -> None:
    # given a storage made in 10 ns from one of 30 ns that the step frees at once, and an op that needs all its room
    build = Build()
    first = build.op(make=100, ns=30)
    second = build.op(make=100, reads=(first,))
    build.save(second)
    build.free(first)
    build.op(temporary=200)
    build.phase = "backward"
    build.read(second)
    build.op(reads=(second,))
    build.free(second)

    # when 200 bytes are allowed, and the link takes 100,000 ns for the storage
    made = plan(build.trace(), machine(out=10**6, back=10**6), 200, "optimal", min_size=1)

    # then both ops run again: 30 + 10 + 10 + 10 ns of the step and 30 + 10 more, which no plan can do without
    assert len(made.recomputes) == 1
    assert made.bound == Bound(machine="test", step_ns=100, lower_bound_ns=100)
