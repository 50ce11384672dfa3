"""Uses of parameters: when a parameter may be away, several times in a step, and what a run does at the borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import Infeasible, InvalidPlan, InvalidRecord
from elbowroom.files.record_files import decode, encode
from elbowroom.plan import Plan, Swap
from elbowroom.planners import Means, plan
from elbowroom.simulate.repeated_steps import cycle, early_waits
from elbowroom.simulate.reserved_curve import AllocatorUse
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, tier_peak
from elbowroom.step.schedule import StateSlot, compile_schedule
from elbowroom.trace import Part, Trace
from tests.core.build import Build, machine

MIB = 2**20
MEANS: tuple[Means, ...] = ("swap", "parameter")


def used(size: int = 100) -> Trace:
    """Two weights: forward is op 0 and 1, backward 2 and 3, the optimizer's two parts 4 and 5, 6 and 7."""
    build = Build()
    weights = [build.storage(size, "parameter") for _ in range(2)]
    for weight in weights:
        build.op("forward", 100, reads=(weight,))
    build.phase = "backward"
    for weight in reversed(weights):
        build.op("backward", 100, reads=(weight,))
    build.phase = "optimizer"
    for weight in weights:
        build.op("decay", 10, reads=(weight,), writes=(weight,))
        build.op("apply", 10, reads=(weight,), writes=(weight,))
    order = (0, 1, 1, 0, 0, 0, 1, 1)
    uses = [Part(first_op=op, end_op=op + 1, storages=(weight,), kind="use") for op, weight in enumerate(order)]
    parts = [Part(first_op=op, end_op=op + 2, storages=()) for op in (4, 6)]
    return replace(build.trace(), parts=tuple(sorted([*uses, *parts], key=lambda part: part.end_op)))


def swapping(trace: Trace, *swaps: tuple[int, int, int]) -> Plan:
    made = tuple(Swap(storage=s, tier="disk", out_after_op=out, back_before_op=back) for s, out, back in swaps)
    return Plan(trace_id=trace.id, planner="test", budget_bytes=10**9, swaps=made)


def test_a_parameter_is_idle_between_any_two_of_its_uses_but_those_in_one_part() -> None:
    step = last_step(used())
    columns = (step.storage, step.idle_from, step.first_read)
    windows = list(zip(*(column.tolist() for column in columns), strict=True))
    # forward to backward, the end of its part to the next step; the second one also backward to its part
    assert windows == [(0, 1, 3), (1, 3, 6), (0, 6, 0), (1, 8, 1)]


def test_what_an_op_uses_that_the_run_does_not_see_stays() -> None:
    trace = used()
    seen = tuple(part for part in trace.parts if part.first_op != 2)
    assert last_step(replace(trace, parts=seen)).storage.tolist() == [0, 0]


def test_a_plan_may_have_several_swaps_of_a_parameter_and_says_what_to_do_at_its_uses() -> None:
    # given the first weight away twice, and the second from its part to the next step
    trace = used()
    made = swapping(trace, (0, 0, 3), (0, 5, 0), (1, 7, 1))
    schedule = compile_schedule(trace, made)

    # windows 0 and 2 are of the first weight, 3 is of the second
    slots = [tuple(slot.n for slot in use) for use in schedule.uses]
    assert slots == [(0,), (None,), (None,), (None,), (None,), (2,), (None,), (3,)]
    assert schedule.uses[0] == (StateSlot(100, "float32", 0),)
    assert schedule.carried == {2, 3}
    assert schedule.on_begin is not None
    assert schedule.on_begin.back == (2,)
    assert schedule.on_use[2, True].back == schedule.on_use[3, False].back == (0,)
    # both are there in backward
    assert schedule.peak_allocated_bytes == 200
    # and each has one place below
    step = last_step(trace)
    assert tier_peak(step, moves_of_plan(step, made)) == 200


def test_parameters_away_whenever_they_idle_halve_what_two_weights_take() -> None:
    trace = used()
    made = plan(trace, machine(), 100, "on_demand", min_size=1, allow=MEANS)
    assert compile_schedule(trace, made).peak_allocated_bytes == 100
    assert len(made.swaps) == 4
    optimal = plan(trace, machine(), 100, min_size=1, allow=MEANS)
    assert compile_schedule(trace, optimal).peak_allocated_bytes == 100


def test_lms_moves_parameters_at_its_limit_and_only_if_they_may() -> None:
    trace, options = used(), {"size_bytes": 1}
    # given room for both weights nothing leaves, and with room for one both leave whenever they idle
    assert plan(trace, machine(), 200, "lms", min_size=1, allow=MEANS, options=options).swaps == ()
    made = plan(trace, machine(), 100, "lms", min_size=1, allow=MEANS, options=options)
    swaps = [(each.storage, each.out_after_op, each.back_before_op) for each in made.swaps]
    assert swaps == [(0, 0, 3), (1, 2, 6), (0, 5, 0), (1, 7, 1)]
    assert compile_schedule(trace, made).peak_allocated_bytes == 100
    # then no weight leaves below its size, nor where parameters are not allowed
    refused: list[tuple[int, tuple[Means, ...]]] = [(101, MEANS), (1, ("swap",))]
    for size_bytes, allow in refused:
        with pytest.raises(Infeasible) as caught:
            plan(trace, machine(), 100, "lms", min_size=1, allow=allow, options={"size_bytes": size_bytes})
        assert caught.value.least_feasible_bytes == 200


@pytest.mark.parametrize("steps", [1, 3])
def test_a_weight_that_comes_back_as_a_step_begins_is_there_until_it_leaves(steps: int) -> None:
    # given two weights of 12 MiB, of which the first is away from its part (ops 4 and 5) to the next step's op 0
    step = last_step(used(12 * MIB))
    moves = moves_of_plan(step, swapping(step.trace, (0, 5, 0)))
    # when it leaves as soon as it may
    held = cycle(step, moves, early_waits(step, moves, ["disk"], None), AllocatorUse(""), steps)
    # then both are there in ops 0 to 5, and one in ops 6 and 7
    assert held.begin_allocated == 24 * MIB
    assert held.allocated.tolist() == [24 * MIB] * 6 + [12 * MIB] * 2


@pytest.mark.parametrize("steps", [1, 3])
def test_a_weight_whose_write_is_never_waited_for_stays_in_all_steps(steps: int) -> None:
    step = last_step(used(12 * MIB))
    moves = moves_of_plan(step, swapping(step.trace, (0, 5, 0), (1, 7, 1)))
    held = cycle(step, moves, {}, AllocatorUse(""), steps)
    assert held.allocated.tolist() == [24 * MIB] * 8


def test_a_swap_of_a_parameter_at_none_of_its_idle_times_is_refused() -> None:
    trace = used()
    with pytest.raises(InvalidPlan, match="out_after_op 1 is not its last use before it is idle"):
        compile_schedule(trace, swapping(trace, (0, 1, 3)))


def test_uses_are_in_the_file_of_a_trace_and_may_lie_inside_parts_but_not_inside_each_other() -> None:
    trace = used()
    assert decode(encode(trace), Trace).parts == trace.parts
    with pytest.raises(InvalidRecord, match=r"^Trace\.parts.*first_op"):
        replace(trace, parts=(trace.parts[1], trace.parts[0]))
