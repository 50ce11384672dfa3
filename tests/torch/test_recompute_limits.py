"""Plans with recomputes that need a limit of the allocator never take the place of plans that need none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.planners.budget.run_budget import Course
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.run.recompute import planning
from elbowroom.run.recompute.planning import planned, would_help
from elbowroom.run.step_question import StepQuestion
from tests.core.build import chain, machine

TRACE = chain([400, 400, 400], ns=10)
BUDGET = 900
QUESTION = StepQuestion(
    trace=TRACE,
    machine=machine(out=10**6, back=10**6),  # swaps are slow
    budget=ResolvedBudget(device_bytes=BUDGET, disk_bytes=10**12),
    asked=PlanRequest(allow=("swap", "recompute")),
    recomputes=True,
)
SWAPS = Plan(
    trace_id=TRACE.id,
    planner="swap_greedy",
    budget_bytes=BUDGET,
    swaps=(Swap(storage=0, tier="disk", out_after_op=0, back_before_op=5),),
)
AGAIN = Plan(
    trace_id=TRACE.id,
    planner="optimal",
    budget_bytes=BUDGET,
    recomputes=(Recompute(storages=(0,), recipe=(0,), before_op=5),),
)


def course(plan: Plan, at_limit: bool = False) -> Course:
    return Course(plan=plan, waiting=None, peak_bytes=BUDGET, at_limit=at_limit)


@pytest.mark.parametrize(("at_limit", "helps"), [(False, True), (True, False)])
def test_no_calls_are_recorded_for_recomputes_that_need_a_limit(
    monkeypatch: pytest.MonkeyPatch, at_limit: bool, helps: bool
) -> None:
    # given recomputes that are faster than swaps
    monkeypatch.setattr(planning, "_course", lambda *_: course(AGAIN, at_limit))

    assert would_help(QUESTION, course(SWAPS)) is helps
    # and where the swaps have one too, or there are none, they help
    assert would_help(QUESTION, course(SWAPS, at_limit=True))
    assert would_help(QUESTION, None)


def test_recomputes_that_need_a_limit_are_taken_where_nothing_else_meets_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Any = object()
    monkeypatch.setattr(planning, "matched", lambda *_: found)
    monkeypatch.setattr(planning, "_planned", lambda _question, _found, made: made)
    limited, free = course(AGAIN, at_limit=True), course(AGAIN)

    monkeypatch.setattr(planning, "_course", lambda *_: limited)
    assert planned(QUESTION, found, is_needed=False) is None
    assert planned(QUESTION, found, is_needed=True) is limited
    monkeypatch.setattr(planning, "_course", lambda *_: free)
    assert planned(QUESTION, found, is_needed=False) is free
    assert planned(replace(QUESTION, recomputes=False), found, is_needed=True) is None
