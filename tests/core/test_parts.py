"""Steps of optimizers in parts: when their states may be away, what a run does at the borders, and who plans it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elbowroom.errors import Infeasible, InvalidPlan, InvalidRecord
from elbowroom.files.record_files import decode, encode
from elbowroom.plan import Plan, Swap
from elbowroom.planners import plan
from elbowroom.simulate.curves import away_points
from elbowroom.simulate.lanes import play
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step, listed
from elbowroom.step.moves import moves_of_plan, peak_in_one_go
from elbowroom.step.schedule import Action, StateSlot, compile_schedule
from elbowroom.trace import Part, Trace
from tests.core.build import Build, machine


def trained(temporary: int = 0, states: tuple[int, ...] = (100, 100)) -> Trace:
    """Two layers of 30 bytes, op 0 to 3; then per state a part of two ops, of which the first one uses the state."""
    build = Build()
    held = [build.storage(size, "optimizer_state") for size in states]
    made: list[int] = []
    for _ in range(2):
        made.append(build.op("forward", 100, make=30))
        build.save(made[-1])
    build.phase = "backward"
    for storage in reversed(made):
        build.read(storage)
        build.op("backward", 100, reads=(storage,))
        build.free(storage)
    build.phase = "optimizer"
    for storage in held:
        build.op("update", 10, temporary=temporary, reads=(storage,), writes=(storage,))
        build.op("apply", 10)
    parts = [Part(first_op=4 + 2 * i, end_op=6 + 2 * i, storages=(storage,)) for i, storage in enumerate(held)]
    return replace(build.trace(), parts=tuple(parts))


def swapping(trace: Trace, *swaps: tuple[int, int, int]) -> Plan:
    made = tuple(Swap(storage=s, tier="disk", out_after_op=out, back_before_op=back) for s, out, back in swaps)
    return Plan(trace_id=trace.id, planner="test", budget_bytes=10**9, swaps=made)


def test_a_state_is_idle_from_the_end_of_its_part_to_the_begin_of_it_in_the_next_step() -> None:
    step = last_step(trained())
    windows = list(
        zip(step.storage[2:].tolist(), step.idle_from[2:].tolist(), step.first_read[2:].tolist(), strict=True)
    )
    # the first part is ops 4 and 5, the second ops 6 and 7, of which only the first uses the state
    assert windows == [(0, 6, 4), (1, 8, 6)]
    # two saves at 1 and 2, read back at 2 and 3, and the borders of the parts
    assert step.ticks.tolist() == [1, 2, 3, 4, 6, 8]


def test_what_no_part_names_stays() -> None:
    trace = trained()
    named = replace(trace, parts=(trace.parts[0], replace(trace.parts[1], storages=())))
    assert last_step(named).storage[2:].tolist() == [0]


def test_the_schedule_says_what_to_do_at_the_borders_of_parts() -> None:
    # given the first state back where the step begins, the second one where the first part ends
    trace = trained()
    schedule = compile_schedule(trace, swapping(trace, (0, 5, 0), (1, 7, 6)))

    # windows 2 and 3 come after the two saves
    assert schedule.parts == ((StateSlot(100, "float32", 2),), (StateSlot(100, "float32", 3),))
    assert schedule.carried == {2, 3}
    assert schedule.on_begin is not None
    assert schedule.on_begin.back == (2,)
    assert schedule.on_part[0, True] == schedule.on_part[1, False]
    assert schedule.on_part[0, True].back == (3,)
    # 200 bytes of states, both there in neither forward nor backward: 100 + 60
    assert schedule.peak_allocated_bytes == 160
    assert isinstance(schedule.on_part[0, True], Action)


def test_states_that_no_part_names_are_refused_in_a_run_with_what_to_ask_for() -> None:
    trace = replace(trained(), parts=())
    with pytest.raises(InvalidPlan) as caught:
        compile_schedule(trace, swapping(trace, (0, 4, 4)))
    assert str(caught.value) == (
        "the plan swaps 1 storages that autograd does not save, such as of category optimizer_state; allowed in a run "
        "are optimizer states and gradients that the trace names in its parts, as one of elbowroom.capture(..., "
        "in_parts=True) does: plan again from such a trace, or with elbowroom.plan(..., allow=('swap',))"
    )


def accumulation(first_op: int, end_op: int, gradient: int) -> Part:
    return Part(first_op=first_op, end_op=end_op, storages=(gradient,), kind="accumulation")


def accumulated() -> Trace:
    """Two gradients of 100 bytes, written in two micro-steps, and a part of the optimizer's step for each."""
    build = Build()
    build.phase = "backward"
    gradients = [build.op("backward", 100, make=100, category="gradient") for _ in range(2)]
    parts = [
        Part(first_op=1 + i, end_op=1 + i, storages=(gradient,), kind="accumulation")
        for i, gradient in enumerate(gradients)
    ]
    for gradient in gradients:
        build.op("forward", 300)
        parts.append(
            Part(first_op=build.position, end_op=build.position + 1, storages=(gradient,), kind="accumulation")
        )
        build.op("add", 10, reads=(gradient,), writes=(gradient,))
    build.phase = "optimizer"
    for gradient in gradients:
        parts.append(Part(first_op=build.position, end_op=build.position + 1, storages=()))
        build.op("update", 10, reads=(gradient,))
    parts.sort(key=lambda part: part.first_op)
    return replace(build.trace(), parts=tuple(parts))


def test_a_gradient_is_idle_between_its_accumulations_and_before_its_part() -> None:
    # op 0 and 1 make the gradients, op 2 and 4 are forward, op 3 and 5 add to them, op 6 and 7 update with them
    step = last_step(accumulated())
    assert [(part.first_op, part.end_op) for part in step.accumulations] == [(1, 1), (2, 2), (3, 4), (5, 6)]
    assert [(part.first_op, part.end_op) for part in step.parts] == [(6, 7), (7, 8)]

    # the first one is idle for op 1 and 2, and then for op 4 and 5; the second one for op 2 to 4, and then for op 6
    windows = list(zip(step.storage.tolist(), step.idle_from.tolist(), step.first_read.tolist(), strict=True))
    assert windows == [(0, 1, 3), (1, 2, 5), (0, 4, 6), (1, 6, 7)]


def test_a_gradient_that_something_else_uses_first_stays_until_then() -> None:
    trace = accumulated()
    clipped = [replace(op, reads=(*op.reads, 1)) if at == 2 else op for at, op in enumerate(trace.ops)]
    # op 2 is in no part, so the runtime does not get control before it: only op 6 is left to the second one
    step = last_step(replace(trace, ops=tuple(clipped)))
    windows = list(zip(step.storage.tolist(), step.idle_from.tolist(), step.first_read.tolist(), strict=True))
    assert windows == [(0, 1, 3), (0, 4, 6), (1, 6, 7)]


def test_the_schedule_says_what_to_do_where_gradients_are_written() -> None:
    trace = accumulated()
    schedule = compile_schedule(trace, swapping(trace, (1, 1, 5)))

    # window 1 begins at the second accumulation, and ends before the fourth
    assert [slot.n for slot in schedule.gradients] == [None, 1, None, None]
    assert schedule.on_gradient[3, False].back == (1,)
    assert schedule.parts == ((), ())
    # both gradients are there in all other ops
    assert schedule.peak_allocated_bytes == 200


def added_to() -> Trace:
    """Two gradients of 100 bytes are there before the step: op 1 adds to the first one, which outlives it.

    Op 0 is the forward, with a temporary of 150 bytes. Op 2 is the optimizer's, which steps another net. Nothing uses
    the second gradient.
    """
    build = Build()
    gradients = [build.storage(100, "gradient") for _ in range(2)]
    build.op("forward", 100, temporary=150)
    build.phase = "backward"
    build.op("add", 100, reads=(gradients[0],), writes=(gradients[0],))
    build.phase = "optimizer"
    build.op("update", 100, temporary=150)
    return replace(build.trace(), parts=(accumulation(1, 2, gradients[0]),))


def test_a_gradient_that_outlives_the_step_is_away_from_its_last_accumulation_to_its_first_in_the_next() -> None:
    trace = added_to()
    step = last_step(trace)
    assert (step.storage.tolist(), step.idle_from.tolist(), step.first_read.tolist()) == ([0], [2], [1])
    assert step.returns.tolist() == [True]

    # kept: 100 + 100 and a temporary of 150; with the first one away, op 0 and 2 hold 100 + 150 and op 1 both
    assert int(step.level.max()) == 350
    made = plan(trace, machine(), 250, min_size=1, allow=("swap", "gradient"))
    schedule = compile_schedule(trace, made)
    assert schedule.peak_allocated_bytes == 250
    assert [slot.n for slot in schedule.gradients] == [0]
    assert schedule.carried == {0}
    assert schedule.accumulated == ((100, "float32"),)
    assert schedule.lasting == {0}
    # the second one is there all the time: it counts as one of another net
    assert schedule.idle_bytes == 100


def test_a_gradient_that_other_code_uses_after_its_last_accumulation_stays_until_the_next_step() -> None:
    trace = added_to()
    clipped = [replace(op, reads=(*op.reads, 0)) if at == 2 else op for at, op in enumerate(trace.ops)]
    assert last_step(replace(trace, ops=tuple(clipped))).storage.tolist() == []


def released(freed: str, saved: int = 0) -> Trace:
    """Two gradients of 100 bytes, made in turn, and a part of the optimizer's step for each, with a temporary of 50.

    They are freed as the next step begins, between two steps (there is one), or where this one ends; some ops whose
    results are saved come first.
    """
    build, parts, old = Build(), list[Part](), list[int]()
    for _ in range(2 if freed == "next" else 1):
        made = [build.op("forward", 10, make=1) for _ in range(saved)]
        for each in made:
            build.save(each)
        build.op("forward", 10)
        for each in old:
            build.free(each)
        build.phase = "backward"
        old.clear()
        for _ in range(2):
            old.append(build.op("backward", 100, make=100, category="gradient"))
            parts.append(accumulation(build.position, build.position, old[-1]))
        build.phase = "optimizer"
        for each in old:
            parts.append(Part(first_op=build.position, end_op=build.position + 1, storages=(each,)))
            build.op("update", 10, temporary=50, reads=(each,))
        build.op("log", 10)
        if freed == "in it":
            for each in old:
                build.free(each)
        build.end_step()
    return replace(build.trace(), parts=tuple(parts))


@pytest.mark.parametrize("freed", ["next", "between", "in it"])
def test_a_gradient_is_away_after_its_part_until_it_is_freed_and_does_not_come_back(freed: str) -> None:
    trace = released(freed)
    step = last_step(trace)
    begin = step.first_op
    new = [part.storages[0] for part in step.parts]
    # op 1 and 2 make the gradients, op 3 and 4 update with them, op 5 logs; op 0 is the forward
    ends = {"next": begin + 1, "between": begin, "in it": begin + 6}[freed]
    windows = list(zip(step.storage.tolist(), step.idle_from.tolist(), step.first_read.tolist(), strict=True))
    after = [(new[0], begin + 4, ends), (new[1], begin + 5, ends)]
    assert windows == [(new[0], begin + 2, begin + 3), (new[1], begin + 3, begin + 4), *after]
    assert step.returns.tolist() == [True, True, False, False]

    # when all are away whenever they idle: one gradient and a temporary are left
    made = plan(trace, machine(), 150, "on_demand", min_size=1, allow=("swap", "gradient"))
    schedule = compile_schedule(trace, made)
    assert schedule.peak_allocated_bytes == 150
    assert [[slot.n for slot in slots] for slots in schedule.released] == [[2], [3]]
    assert schedule.carried == (set() if freed == "in it" else {2, 3})
    # nothing starts back for the two windows after the parts
    every = [*schedule.on_part.values(), *schedule.on_gradient.values(), schedule.on_begin, schedule.on_end]
    assert not {n for action in every if action is not None for n in action.back} & {2, 3}
    # then nothing is left of the old ones where a step begins
    line = simulate(trace, machine(), made)
    assert line.peak_allocated_bytes == 150
    optimal = plan(trace, machine(), 150, min_size=1, allow=("swap", "gradient"))
    assert compile_schedule(trace, optimal).peak_allocated_bytes == 150


def test_a_gradient_that_leaves_in_the_next_step_leaves_under_the_name_that_it_has_there() -> None:
    # given a write that ends in the forward of the next step, before that frees the gradient
    trace, slow = released("next", saved=2), replace(machine(out=5 * 10**9), allocator="")
    step = last_step(trace)
    new, old = max(step.replaced.items())
    made = swapping(trace, (new, step.end_op - 2, step.first_op + 3))
    # when
    moves = moves_of_plan(step, made)
    which, begin, end = away_points(step, moves, play(step, moves, slow, ("disk",)))
    # then it is away under its old name from the end of the second op on, until that name is freed
    assert listed(step.storage_away(moves.n[which], begin)) == [old]
    assert (*begin, *end) == (int(step.point_of[2]), int(step.gone[old]))
    # and the allocator frees and makes it once a step
    assert simulate(trace, slow, made).peak_reserved_bytes == simulate(trace, slow).peak_reserved_bytes


def test_a_gradient_that_is_not_used_again_is_not_brought_back() -> None:
    trace = released("between")
    with pytest.raises(InvalidPlan, match="it is not used again, so back_before_op must be 0"):
        compile_schedule(trace, swapping(trace, (0, 3, 6)))


def test_parts_carried_out_in_one_go_hold_what_they_hold_beside_each_other() -> None:
    # 200 bytes of states, and a temporary of 40 in each part: 280 in one go, 240 one after the other
    step = last_step(trained(temporary=40))
    assert peak_in_one_go(step) == 280
    assert int(step.level[step.point_of[4] :].max()) == 240
    assert peak_in_one_go(last_step(replace(trained(), parts=()))) == 0


def test_swap_states_moves_states_only_where_saves_are_not_enough() -> None:
    trace, on = trained(), machine()
    saved = {save.storage for save in trace.saves}

    # 230 bytes are one layer beside both states: saves alone do
    enough = plan(trace, on, 230, "swap_states", min_size=1)
    assert {swap.storage for swap in enough.swaps} <= saved

    # 229 bytes are not: a state goes
    less = plan(trace, on, 229, "swap_states", min_size=1)
    assert {swap.storage for swap in less.swaps} - saved
    with pytest.raises(Infeasible) as caught:
        plan(trace, on, 99, "swap_states", min_size=1)
    # in a part its state is there
    assert caught.value.least_feasible_bytes == 100
    with pytest.raises(Infeasible):
        plan(trace, on, 229, "swap_states", min_size=1, allow=("swap",))


def test_parts_are_in_the_file_of_a_trace_with_their_kind() -> None:
    trace = accumulated()
    assert decode(encode(trace), Trace).parts == trace.parts
    rows = json.loads(encode(trace))["parts"]["rows"]
    # two accumulations in each of two micro-steps, then two parts of the optimizer
    assert [row[-1] for row in rows] == ["accumulation"] * 4 + ["optimizer"] * 2


def test_parts_that_overlap_or_name_what_is_not_there_are_refused() -> None:
    trace = trained()
    with pytest.raises(InvalidRecord):
        replace(trace, parts=(trace.parts[1], trace.parts[0]))
    with pytest.raises(InvalidRecord):
        replace(trace, parts=(replace(trace.parts[0], storages=(99,)),))
