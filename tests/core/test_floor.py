"""What a step holds however its storages move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from elbowroom.errors import Infeasible
from elbowroom.planners import plan
from elbowroom.planners.budget.floor import floor_bytes
from elbowroom.trace import Storage, Trace
from tests.core.build import Build, chain, machine, traces

pytestmark = pytest.mark.long


def test_what_an_op_uses_and_what_is_kept_is_the_floor() -> None:
    # given layers of 30, 50 and 20 bytes beside 7 of a parameter: forward makes one, backward reads one at a time
    trace = chain([30, 50, 20], base=7)
    # then the largest is there with the parameter, in both
    assert floor_bytes(trace, 1) == 57
    # and where storages below 60 bytes are kept, all lie beside each other: 7 + 30 + 50 + 20
    assert floor_bytes(trace, 60) == 107


def test_workspaces_count_as_none() -> None:
    # given an op of 40 bytes that works in 100 more
    build = Build()
    made = build.op(make=40, temporary=100)
    build.save(made)
    build.phase = "backward"
    build.read(made)
    build.op(reads=(made,))
    build.free(made)
    trace = build.trace()
    assert floor_bytes(trace, 1) == 100
    # when these are a library's
    storages = [replace(each, category="workspace") if each.size_bytes == 100 else each for each in trace.storages]
    # then only what is made, and read back, is sure
    assert floor_bytes(replace(trace, storages=tuple[Storage, ...](storages)), 1) == 40


@settings(max_examples=150, deadline=None)
@given(traces())
def test_no_planner_meets_a_budget_below_the_floor(trace: Trace) -> None:
    floor = floor_bytes(trace, 1)
    for planner in ("optimal", "swap_greedy", "threshold"):
        with pytest.raises(Infeasible) as refused:
            plan(trace, machine(), max(floor - 1, 0), planner, min_size=1)
        assert refused.value.least_feasible_bytes >= floor
