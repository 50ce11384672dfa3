"""Plans that were made for another trace of a training, moved to the trace of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import InvalidPlan
from elbowroom.plan import Algorithm, Plan, Swap
from elbowroom.planners.budget.run_budget import course_of
from elbowroom.run.given_plan import moved_to
from elbowroom.trace import Choice, Trace
from tests.core.build import Build
from tests.core.test_cycles import MIB, machine

OTHERS = tuple(Choice(name=name, duration_ns=10, workspace_bytes=0) for name in ("onednn", "native"))


def steps(offering: tuple[int, ...], before: int = 0) -> Trace:
    """Ops of which those at some places offer another algorithm, `before` more ops in a step before it."""
    build = Build()
    for _ in range(before):
        build.op()
    if before:
        build.end_step()
    for place in range(8):
        build.op()
        if place in offering:
            build.ops[-1] = replace(build.ops[-1], choices=OTHERS)
    return build.trace()


def planned(trace: Trace, *ops: int) -> Plan:
    made = tuple(Algorithm(op=op, choice="native") for op in ops)
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=2**40, algorithms=made)


def test_a_plan_with_algorithms_alone_is_moved_to_where_the_step_begins() -> None:
    # given ops 1, 4 and 5 of a step, which begins 6 ops later in the trace of the plan
    made = planned(steps((1, 4, 5), before=6), 6 + 1, 6 + 4)
    run = steps((1, 4, 5))
    # when
    moved = moved_to(run, made)
    # then
    assert [each.op for each in moved.algorithms] == [1, 4]
    assert moved.trace_id == run.id


def test_where_the_same_places_offer_them_a_plan_stays_there() -> None:
    # given a trace that differs in the op after those, and ops that would fit one and two ops later too
    made = planned(steps((1, 2, 3)), 1)
    # then
    assert [each.op for each in moved_to(steps((1, 2, 3, 6)), made).algorithms] == [1]


def test_a_plan_with_algorithms_that_fits_nowhere_or_in_several_places_is_refused() -> None:
    made = planned(steps((1, 4), before=6), 6 + 1)
    with pytest.raises(InvalidPlan, match="it runs op 7 with 'native', which may be op 1, op 4 of this step"):
        moved_to(steps((1, 4)), made)
    with pytest.raises(InvalidPlan, match="which may be no op of this step"):
        moved_to(steps(()), made)


def test_a_plan_that_reserves_more_than_its_budget_may_keep_to_it_as_a_limit() -> None:
    # given 1 MiB that is away, while 30 MiB are there for a moment, and then 40
    build = Build()
    parameter = build.storage(12 * MIB, "parameter")
    away = build.save(build.op(make=MIB))
    build.op(temporary=30 * MIB)
    build.save(parameter, idle=False)
    build.op(temporary=40 * MIB)
    build.phase = "backward"
    build.read(away)
    build.op(reads=(away,))
    build.free(away)
    trace = build.trace()
    swap = Swap(storage=away, tier="host", out_after_op=0, back_before_op=3)
    made = Plan(trace_id=trace.id, planner="by hand", budget_bytes=2**40, swaps=(swap,))

    # then without a limit there are 12 of parameters, 30, 40, and the 1 is in a segment of 2
    alone = course_of(trace, machine(), made, 84 * MIB)
    assert (alone.peak_bytes, alone.at_limit) == (84 * MIB, False)

    # then at a limit the 30 go back for the 40: 12 + 40 + 2, and 4 stay free below the budget
    limited = course_of(trace, machine(), made, 58 * MIB)
    assert (limited.peak_bytes, limited.at_limit) == (54 * MIB, True)

    # then where that does not hold the budget either, it has none: 12 + 40 are more than 55 less 4
    assert course_of(trace, machine(), made, 55 * MIB) == alone
