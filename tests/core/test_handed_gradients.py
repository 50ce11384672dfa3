"""Handed gradients: ops of clipping on gradients that are away, in a captured trace: their room and their time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.files.record_files import decode, encode
from elbowroom.plan import Plan, Swap
from elbowroom.planners.budget.remedies import restricted
from elbowroom.simulate.simulate import simulate
from elbowroom.step.handed_gradients import borders, with_handed, without_handed
from elbowroom.step.last_step import last_step
from elbowroom.step.schedule import compile_schedule
from elbowroom.trace import Op, Part, Trace
from tests.core.build import Build, machine

SIZE = 100
COUNT = 32
NORM, SCALE, FIRST_PART = COUNT, COUNT + 1, COUNT + 2


def clipped(norm: str = "aten._foreach_norm") -> Trace:
    """Backward makes 32 gradients of 100 bytes, one an op; two ops read all, the second writes them."""
    build = Build()
    build.phase = "backward"
    gradients = [build.op("make", 10, make=SIZE) for _ in range(COUNT)]
    build.phase = "other"
    build.op(norm, 10, reads=tuple(gradients))
    build.op("aten._foreach_mul_", 10, reads=tuple(gradients), writes=tuple(gradients))
    build.phase = "optimizer"
    for gradient in gradients:
        build.op("apply", 10, reads=(gradient,))
    build.end_step()
    made = build.trace()
    storages = tuple(
        replace(each, category="gradient") if number in gradients else each for number, each in enumerate(made.storages)
    )
    accumulations = [
        Part(first_op=n + 1, end_op=n + 1, storages=(g,), kind="accumulation") for n, g in enumerate(gradients)
    ]
    own = [Part(first_op=FIRST_PART + n, end_op=FIRST_PART + n + 1, storages=()) for n in range(COUNT)]
    return replace(made, storages=storages, parts=tuple(sorted([*accumulations, *own], key=lambda part: part.end_op)))


def test_lists_are_divided_as_a_run_divides_them() -> None:
    # a 16th of 3200 bytes is 200: two at a time; one that is larger than a 16th is a part of its own
    assert borders([100] * 32) == list(range(0, 33, 2))
    assert borders([10, 1000, 10]) == [0, 1, 2, 3]


def test_a_gradient_that_clipping_reads_is_idle_from_its_accumulation_to_its_part() -> None:
    assert not len(last_step(clipped()).storage)  # nothing may move while the whole list is read

    step = last_step(with_handed(clipped()))
    windows = list(zip(step.storage.tolist(), step.idle_from.tolist(), step.first_read.tolist(), strict=True))
    assert windows == [(n, n + 1, FIRST_PART + n) for n in range(COUNT)]


def test_the_room_of_one_part_is_there_during_each_op() -> None:
    made = with_handed(clipped())

    rooms = [(e.op, e.size_bytes) for e in made.events if made.storages[e.storage].category == "temporary"]
    # parts of two gradients each
    assert rooms == [(NORM, 200), (NORM, -200), (SCALE, 200), (SCALE, -200)]
    assert [(p.first_op, len(p.storages)) for p in made.parts if p.kind == "handed"] == [(NORM, 32), (SCALE, 32)]
    assert with_handed(made) is made
    assert decode(encode(made), Trace) == made


def test_an_op_that_does_not_treat_lists_needs_all_that_it_reads() -> None:
    made = with_handed(clipped("aten.cat"))
    assert next(e.size_bytes for e in made.events if made.storages[e.storage].category == "temporary") == COUNT * SIZE


def test_the_cache_is_emptied_before_the_same_event_as_before() -> None:
    trace = clipped()
    emptied = replace(trace, empties=(3, len(trace.events)))
    made = with_handed(emptied)
    assert made.events[made.empties[0]] == trace.events[3]
    assert made.empties[1] == len(made.events)


def away(trace: Trace, count: int) -> Plan:
    swaps = tuple(Swap(storage=n, tier="disk", out_after_op=n, back_before_op=FIRST_PART + n) for n in range(count))
    return Plan(trace_id=trace.id, planner="test", budget_bytes=10**9, swaps=swaps)


def test_the_copies_of_what_is_away_take_time_and_those_of_what_stays_do_not() -> None:
    # one byte takes one nanosecond: the norm brings 100 bytes back, the scaling brings them back and out again
    trace = with_handed(clipped())
    whole = restricted(trace, ("swap", "state", "gradient", "parameter"))
    kept = simulate(whole, machine())

    one, two = (simulate(whole, machine(), away(whole, count)) for count in (1, 2))
    in_clipping = [
        sum(span.end_ns - span.start_ns for span in line.spans if span.kind == "stall" and span.op in (NORM, SCALE))
        for line in (kept, one, two)
    ]
    assert in_clipping == [0, 300, 600]
    assert one.step_ns >= kept.step_ns + 300
    assert compile_schedule(whole, away(whole, 1)).gradients


@pytest.mark.parametrize("means", [("swap", "state", "gradient"), ("swap", "state", "parameter")])
def test_without_both_means_nothing_is_handed_out(means: tuple[str, ...]) -> None:
    assert not len(last_step(restricted(with_handed(clipped()), means)).storage)


def test_a_run_that_hands_nothing_out_has_no_accumulations_of_what_is_clipped() -> None:
    for trace in (clipped(), with_handed(clipped())):
        made = without_handed(trace)
        assert {part.kind for part in made.parts} == {"optimizer"}
    plain = replace(clipped(), ops=tuple(replace(op, reads=(), writes=()) for op in clipped().ops))
    assert without_handed(plain) is plain
    assert with_handed(plain) is plain


def test_what_backward_reads_itself_is_not_handed_out() -> None:
    trace = clipped()
    reading = Op(name="read", module="", phase="backward", reads=(0,), writes=(), duration_ns=1)
    ops = (*trace.ops[:5], reading, *trace.ops[6:])
    assert all(part.first_op != 5 for part in with_handed(replace(trace, ops=ops)).parts if part.kind == "handed")
