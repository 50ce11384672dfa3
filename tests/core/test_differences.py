"""Where two traces first differ, and what the error of a plan for another trace says of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from elbowroom.errors import InvalidPlan
from elbowroom.plan import Plan
from elbowroom.planners import check
from elbowroom.step.trace_diff import first_difference
from elbowroom.trace import Trace
from tests.core.build import chain

# Ops 0 to 2 are forward and make storages 0 to 2 of 10, 20 and 30 bytes, ops 3 to 5 backward.
TRACE = chain([10, 20, 30])


def renamed(trace: Trace, op: int, name: str) -> Trace:
    ops = list(trace.ops)
    ops[op] = replace(ops[op], name=name)
    return replace(trace, ops=tuple(ops))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (TRACE, None),
        (chain([10, 20, 30], ns=99), None),
        (replace(TRACE, device="cuda:0"), "it was recorded on cpu, not cuda:0"),
        (replace(TRACE, torch_version="9"), "it was recorded with torch 0, not 9"),
        (
            renamed(TRACE, 1, "aten.relu"),
            "op 1 of its step is forward in 'net' (forward), not aten.relu in 'net' (forward)",
        ),
        (chain([10, 25, 30]), "its storage 1 is 20 B of float32 (activation), not 25 B of float32 (activation)"),
        (
            chain([10, 20]),
            "op 2 of its step is forward in 'net' (forward), not backward in 'net' (backward)",
        ),
        (
            replace(TRACE, saves=(replace(TRACE.saves[0], idle_from=2), *TRACE.saves[1:])),
            "saved storage 0 of its step is 0, saved at 1 and idle from 1, not 0, saved at 1 and idle from 2",
        ),
        (replace(TRACE, saves=TRACE.saves[:2]), "it has 3 saved storages in its step, not 2"),
        (replace(TRACE, events=TRACE.events[:-1]), "it has 6 allocations and frees, not 5"),
    ],
)
def test_the_first_difference_is_said(other: Trace, difference: str | None) -> None:
    assert first_difference(TRACE, other) == difference


def test_a_plan_for_another_trace_says_where_the_two_differ() -> None:
    other = chain([10, 25, 30])
    plan = Plan(trace_id=other.id, planner="by hand", budget_bytes=100)
    head = f"the plan was made for trace '{other.id}', this is trace '{TRACE.id}'; "
    remedy = "plan again with elbowroom.plan for this trace"

    with pytest.raises(InvalidPlan, match=f"^{re.escape(head + remedy)}$"):
        check(TRACE, plan)
    difference = "it differs first in this: its storage 1 is 20 B of float32 (activation), not 25 B of float32 "
    with pytest.raises(InvalidPlan, match=f"^{re.escape(f'{head}{difference}(activation); {remedy}')}$"):
        check(TRACE, plan, other=other)


def test_traces_that_differ_in_times_only_are_said_to() -> None:
    slower = chain([10, 20, 30], ns=99)
    with pytest.raises(InvalidPlan, match="they differ in times only"):
        check(TRACE, Plan(trace_id=slower.id, planner="by hand", budget_bytes=100), other=slower)
    # and the trace of the plan itself is no other one
    check(TRACE, Plan(trace_id=TRACE.id, planner="by hand", budget_bytes=100), other=slower)
