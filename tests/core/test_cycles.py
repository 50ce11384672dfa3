"""What a caching allocator holds under a plan, step after step; MiB stands for 2**20 bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible
from elbowroom.machine import Link, Machine, Tier, TierName
from elbowroom.planners import plan
from elbowroom.planners.problem import moves_on_demand
from elbowroom.simulate.repeated_steps import away_while_waiting, cycle, early_waits, fits_below, waits_at_saves
from elbowroom.simulate.reserved_curve import AllocatorUse, equal_steps
from elbowroom.step.last_step import LastStep, last_step
from elbowroom.step.moves import Moves, moves_of_plan, need, waits
from elbowroom.trace import Trace
from tests.core.build import Build, chain, traces

MIB = 2**20


def machine(out: int = 10**9) -> Machine:
    """A device with a caching allocator above host memory."""
    link = Link(upper="device", lower="host", out_bytes_per_s=out, back_bytes_per_s=10**9, latency_ns=0)
    tiers = (Tier(name="device", capacity_bytes=10**12), Tier(name="host", capacity_bytes=10**12))
    return Machine(name="test", tiers=tiers, links=(link,), allocator="")


def planned(trace: Trace, budget: int, on: Machine) -> tuple[LastStep, Moves]:
    made = plan(trace, replace(on, allocator="exact"), budget, "swap_greedy", min_size=1, allow=("swap",))
    step = last_step(trace)
    return step, moves_of_plan(step, made)


def on_host(moves: Moves) -> list[TierName]:
    return ["host"] * len(moves.n)


def test_without_moves_it_is_what_the_allocator_holds_of_the_trace() -> None:
    # given three layers of 12 MiB beside 12 MiB of parameters
    step, moves = planned(chain([12 * MIB] * 3, base=12 * MIB), 10**12, machine())
    # when
    held = cycle(step, moves, {}, AllocatorUse(""))
    # then each has a segment of its own, and all are there from the first step on
    assert held.reserved.tolist() == [48 * MIB] * 6
    # ops 0 to 2 make a layer each, backward frees them: 12 of parameters and 12 for each layer
    assert held.allocated.tolist() == [24 * MIB, 36 * MIB, 48 * MIB, 48 * MIB, 36 * MIB, 24 * MIB]


def test_segments_that_the_steps_before_left_count() -> None:
    # given layers of 30 and 12 MiB: the first step has a segment for each, and the next one finds both free
    step, moves = planned(chain([12 * MIB, 30 * MIB]), 10**12, machine())
    # then the first layer of the second step goes into the smaller one, the best fit
    assert cycle(step, moves, {}, AllocatorUse(""), steps=1).reserved.tolist() == [
        12 * MIB,
        42 * MIB,
        42 * MIB,
        42 * MIB,
    ]
    again = cycle(step, moves, {}, AllocatorUse(""), steps=2)
    assert again.reserved.tolist() == [42 * MIB] * 4
    assert again.most_reserved == 42 * MIB


def test_what_the_cache_has_free_where_the_plan_begins_does_not_count() -> None:
    # given 12 MiB of parameters beside which 30 MiB were there for a moment, before a step that takes 12 MiB
    build = Build()
    build.storage(12 * MIB, "parameter")
    build.free(build.storage(30 * MIB, "temporary"))
    build.op(temporary=12 * MIB)
    step = last_step(build.trace())
    # then the step has a segment of its own and not one of 30: 12 + 12
    held = cycle(step, moves_on_demand(step, np.zeros(0, np.int64)), {}, AllocatorUse(""), steps=1)
    assert held.reserved.tolist() == [24 * MIB]


def test_a_storage_leaves_where_its_write_should_have_ended() -> None:
    # given four layers of 12 MiB, 10 ms each, of which two must leave, and a link that needs 12.6 ms for one
    trace = chain([12 * MIB] * 4, ns=10**7)
    step, moves = planned(trace, 30 * MIB, machine())
    assert moves.n.tolist() == [0, 1, 2][: len(moves.n)]
    # when
    waiting = early_waits(step, moves, on_host(moves), machine())
    # then at 20 ms, before op 2, nothing has left: its write began at 10 ms; before op 3 the first has
    assert waiting.get(2, 0) <= waiting.get(3, 0)
    assert waiting[3] >= 1
    # and with no rates it must have left as soon as a tick comes after it is idle
    assert early_waits(step, moves, on_host(moves), None)[2] >= 1


@settings(max_examples=60, deadline=None)
@given(traces(layers=6), st.integers(30, 100), st.integers(10**3, 10**9))
def test_no_wait_is_left_out_and_none_comes_before_its_save(trace: Trace, percent: int, out: int) -> None:
    step = last_step(trace)
    on = machine(out)
    try:
        step, moves = planned(trace, int(step.level.max()) * percent // 100, on)
    except Infeasible:
        return
    needed = need(step, moves)
    least = waits(step, moves, needed, int(needed.max()))
    for rates, before_idle in ((on, False), (None, False), (None, True)):
        waiting = early_waits(step, moves, on_host(moves), rates, before_idle=before_idle)
        done = 0
        for tick in step.ticks.tolist():
            done = max(done, waiting.get(tick, 0))
            assert done >= max((count for at, count in least.items() if at <= tick), default=0)
            assert done <= int((step.saved_at[moves.n] <= tick).sum())
        which, begin, end = away_while_waiting(step, moves, waiting)
        # so the allocated peak stays the planned one
        change = step.level.copy()
        for size, left, back in zip(moves.size[which].tolist(), begin.tolist(), end.tolist(), strict=True):
            change[left:back] -= size
        assert int(change.max()) <= int(needed.max())


def test_a_storage_in_use_does_not_hold_up_those_that_left_after_it() -> None:
    # given one that is saved first and used until the end of forward, and one that is saved later and idle at once
    build = Build()
    skip = build.save(build.op(make=12 * MIB), idle=False)
    inner = build.save(build.op(make=12 * MIB))
    build.op()
    build.idle(skip)
    for saved in (inner, skip):
        build.phase = "backward"
        build.read(saved)
        build.op(reads=(saved,))
        build.free(saved)
    build.end_step()
    step = last_step(build.trace())
    moves = moves_on_demand(step, np.array([0, 1]))
    # when nothing is known of rates
    waiting = early_waits(step, moves, on_host(moves), None)
    # then both writes have ended where the later one is idle, at position 2: the skip is freed by its last user
    assert waiting[2] == 2


def held_until_its_op_returns() -> tuple[LastStep, Moves]:
    """Op 1 saves its argument of 12 MiB, which is gone when op 2 makes as much; the next tick comes after that."""
    build = Build()
    argument = build.save(build.op(make=12 * MIB), idle=False)
    build.op()
    build.idle(argument)
    after = build.save(build.op(make=12 * MIB))
    build.phase = "backward"
    for saved in (after, argument):
        build.read(saved)
        build.op(reads=(saved,))
        build.free(saved)
    step = last_step(build.trace())
    return step, moves_on_demand(step, np.array([0, 1]))


def test_a_storage_goes_with_its_last_user_where_its_write_has_ended_at_the_tick_before() -> None:
    step, moves = held_until_its_op_returns()
    # when it leaves at the first tick after it is idle, position 3, then op 2 finds it there: 12 + 12 MiB
    late = {3: 1}
    assert cycle(step, moves, late, AllocatorUse("")).allocated[2] == 24 * MIB
    # when its write has ended at position 1, the last tick before it is idle, then it is gone
    early = early_waits(step, moves, on_host(moves), None, before_idle=True)
    assert early[1] == 1
    assert cycle(step, moves, early, AllocatorUse("")).allocated[2] == 12 * MIB


def test_waits_at_saves_are_for_all_that_was_saved_so_far() -> None:
    step, moves = held_until_its_op_returns()
    assert waits_at_saves(step, moves) == {1: 1, 3: 2}


def large_hole() -> tuple[LastStep, Moves]:
    """Beside 12 MiB of parameters: 30 MiB for a moment, then 12 that stay, then 30 again; a tick before the 12."""
    build = Build()
    parameter = build.storage(12 * MIB, "parameter")
    build.op(temporary=30 * MIB)
    build.save(parameter, idle=False)
    made = build.op(make=12 * MIB)
    build.op(temporary=30 * MIB)
    build.free(made)
    step = last_step(build.trace())
    return step, moves_on_demand(step, np.zeros(0, np.int64))


def test_a_block_that_stays_in_a_large_hole_is_in_the_way_even_at_a_limit() -> None:
    # given that the 12 MiB lie in the hole of 30, and the second 30 have a segment of their own: 12 + 30 + 30
    step, moves = large_hole()
    assert cycle(step, moves, {}, AllocatorUse("")).reserved.max() == 72 * MIB
    # then the segment with the 12 MiB cannot go back at a limit of 70
    assert fits_below(step, moves, {}, AllocatorUse(""))(72 * MIB)
    assert not fits_below(step, moves, {}, AllocatorUse(""))(70 * MIB)


def test_pages_of_expandable_segments_serve_what_is_around_a_block_that_stays() -> None:
    # given pages of 20 MiB: 12 + 12 + 30 need three
    step, moves = large_hole()
    assert cycle(step, moves, {}, AllocatorUse("expandable_segments:True")).most_reserved == 60 * MIB
    # then at a limit torch counts the 30 beside the page of the 12, and then takes whole pages
    assert fits_below(step, moves, {}, AllocatorUse("expandable_segments:True"))(50 * MIB)
    assert not fits_below(step, moves, {}, AllocatorUse("expandable_segments:True"))(49 * MIB)


def test_an_allocator_at_its_limit_gives_back_what_the_next_block_cannot_use() -> None:
    # given 30 MiB for a moment, and then 40, beside 12 of parameters
    build = Build()
    parameter = build.storage(12 * MIB, "parameter")
    build.op(temporary=30 * MIB)
    build.save(parameter, idle=False)
    build.op(temporary=40 * MIB)
    step = last_step(build.trace())
    moves = moves_on_demand(step, np.zeros(0, np.int64))
    # then each has a segment of its own, and at a limit one after the other
    assert cycle(step, moves, {}, AllocatorUse("")).most_reserved == 82 * MIB
    assert fits_below(step, moves, {}, AllocatorUse(""))(52 * MIB)
    assert not fits_below(step, moves, {}, AllocatorUse(""))(51 * MIB)


def test_what_lies_there_as_the_steps_begin_may_not_be_beyond_the_limit() -> None:
    # given 3 MiB of parameters, which lie in a segment of 20, and steps that find room for 2 MiB there
    build = Build()
    parameter = build.storage(3 * MIB, "parameter")
    build.op(temporary=2 * MIB)
    build.save(parameter, idle=False)
    step = last_step(build.trace())
    moves = moves_on_demand(step, np.zeros(0, np.int64))
    # then nothing is asked of the driver, and yet a limit of less than the segment is not met
    assert fits_below(step, moves, {}, AllocatorUse(""))(20 * MIB)
    assert not fits_below(step, moves, {}, AllocatorUse(""))(19 * MIB)


def test_the_first_of_all_steps_makes_its_optimizer_state_among_its_blocks() -> None:
    # given steps with 30 MiB of activations; the first makes 8 MiB of an optimizer's state after these are free
    build, state = Build(), -1
    for turn in range(2):
        activation = build.op(make=30 * MIB)
        build.phase = "backward"
        build.op()
        build.free(activation)
        build.phase = "optimizer"
        if turn == 0:
            state = build.op(make=8 * MIB, category="optimizer_state")
        build.op(reads=(state,))
        build.end_step()
    step, moves = planned(build.trace(), 10**12, machine())
    # when it is played with the state there already: that is in a segment of 20 MiB
    assert cycle(step, moves, {}, AllocatorUse("")).most_reserved == 50 * MIB
    # then the state takes a part of the free 30 MiB from the first step on, and the next one gets another 30
    assert cycle(step, moves, {}, AllocatorUse("", from_first=True)).most_reserved == 60 * MIB
    assert not fits_below(step, moves, {}, AllocatorUse("", from_first=True))(50 * MIB)


def test_the_first_of_all_steps_has_no_gradient_to_free() -> None:
    # given steps that free the gradient of the step before after their forward
    build, gradient = Build(), -1
    for turn in range(2):
        build.op(reads=())
        if turn:
            build.free(gradient)
        build.phase = "backward"
        gradient = build.op(make=30 * MIB, category="gradient")
        build.end_step()
    step, moves = planned(build.trace(), 10**12, machine())
    # then only a later step begins with it
    later = cycle(step, moves, {}, AllocatorUse(""), steps=1)
    first = cycle(step, moves, {}, AllocatorUse("", from_first=True), steps=1)
    assert (later.begin_allocated, first.begin_allocated) == (30 * MIB, 0)
    assert first.allocated.tolist() == [0, 30 * MIB]


def test_a_storage_that_leaves_again_where_it_comes_back_is_there_at_that_point() -> None:
    # given a save of 30 MiB, and ops that take as much after it, the third one at point 9
    build = Build()
    saved = build.save(build.op(make=30 * MIB))
    for _ in range(6):
        build.op(temporary=30 * MIB)
    build.phase = "backward"
    build.read(saved)
    build.op()
    step, moves = planned(build.trace(), 50 * MIB, machine(out=10**12))

    def most_reserved(*windows: tuple[int, int]) -> int:
        begin, end = (np.array(each, np.int64) for each in zip(*windows, strict=True))
        away = np.zeros(len(windows), np.int64), begin, end
        return equal_steps(step, moves, away, AllocatorUse("")).played().most_reserved

    # when it is away until its read, then ops take its block; where it is back at point 9, the third one needs another
    assert most_reserved((2, 20)) == 30 * MIB
    assert most_reserved((2, 9), (9, 20)) == 60 * MIB
