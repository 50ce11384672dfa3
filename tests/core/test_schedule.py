"""Schedules: the peak, the waits and where the actions go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.planners import plan
from elbowroom.step.schedule import Action, Schedule, compile_schedule
from elbowroom.trace import Trace
from tests.core.build import Build, chain, machine, traces


def swapping(trace: Trace, *swaps: tuple[int, int], budget: int = 10**9) -> Plan:
    """A plan that swaps storages to disk, each given with the position before which it is back."""
    saved_at = {save.storage: save.saved_at for save in trace.saves}
    return Plan(
        trace_id=trace.id,
        planner="by hand",
        budget_bytes=budget,
        swaps=tuple(
            Swap(storage=storage, tier="disk", out_after_op=saved_at[storage] - 1, back_before_op=back)
            for storage, back in sorted(swaps, key=lambda swap: saved_at[swap[0]])
        ),
    )


def everything(trace: Trace, budget_bytes: int | None = None) -> Plan:
    return plan(trace, machine(), 10**9 if budget_bytes is None else budget_bytes, "swap_all", min_size=1)


def held_per_op(trace: Trace, swapped: Plan, unfinished: dict[int, set[int]]) -> list[int]:
    """Peak bytes of each op of the last step, storage by storage; an independent account for the tests.

    `unfinished[op]` are the storages whose write has not ended while that op runs.
    """
    first, end = trace.steps[-1]
    windows = {swap.storage: (swap.storage, swap.back_before_op) for swap in swapped.swaps}
    idle = {save.storage: save.idle_from for save in trace.saves}
    returns = {save.storage: bool(save.read_at) for save in trace.saves}
    live: set[int] = set()

    def held(op: int) -> int:
        total = 0
        for storage in live:
            start = idle.get(storage)
            away = storage in windows and start is not None and start <= op
            away = away and (op < windows[storage][1] or not returns[storage]) and storage not in unfinished[op]
            total += 0 if away else trace.storages[storage].size_bytes
        return total

    peaks: list[int] = []
    events = iter(trace.events)
    event = next(events, None)
    for op in range(-1, end + 1):
        peak = held(op) if op >= first else 0
        while event is not None and event.op == op < end:
            (live.add if event.size_bytes > 0 else live.discard)(event.storage)
            peak = max(peak, held(op)) if op >= first else 0
            event = next(events, None)
        if op >= first:
            peaks.append(peak)
    return peaks


def least_writes(trace: Trace, schedule: Schedule) -> dict[int, set[int]]:
    """Per op, the swapped storages whose writes have not ended when the runtime waits for no more than it must."""
    first, end = trace.steps[-1]
    saves = [save for save in trace.saves if first <= save.saved_at <= end]
    done, unfinished = 0, {op: set[int]() for op in range(-1, end + 1)}
    for op in range(first, end + 1):
        actions = [schedule.on_save[n] for n in schedule.on_save if saves[n].saved_at == op]
        actions += [schedule.on_read[n, k] for n, k in schedule.on_read if saves[n].read_at[k] == op]
        done = max([done, *(action.writes_done for action in actions)])
        unfinished[op] = {saves[n].storage for n in schedule.swapped[done:]}
    return unfinished


def nothing_pending(trace: Trace) -> dict[int, set[int]]:
    return {op: set() for op in range(-1, trace.steps[-1].end_op + 1)}


def test_the_peak_counts_a_swapped_storage_as_away_between_idle_and_back() -> None:
    # given 3 layers of 100 bytes on 10 of parameters; backward op 3 reads storage 3, op 4 storage 2, op 5 storage 1
    trace = chain([100, 100, 100], base=10)

    # when storage 1 is away from position 1 until position 5
    schedule = compile_schedule(trace, swapping(trace, (1, 5)))

    # then op 2 and op 3 hold 10 + 200, op 4 holds 10 + 100 (storage 2), op 5 holds 10 + 100 (storage 1)
    assert schedule.peak_allocated_bytes == 210
    assert schedule.swapped == (0,)
    assert schedule.tiers == ("disk",)


def test_the_peak_is_inside_an_op_where_a_temporary_makes_it() -> None:
    # given ops that allocate and free 50 bytes before they make 100
    trace = chain([100, 100], base=10, temporary=50)

    # when nothing is swapped: op 2 starts with 10 + 200 and takes 50 more
    schedule = compile_schedule(trace, swapping(trace))

    assert schedule.peak_allocated_bytes == 260
    assert schedule.on_save == {}
    assert schedule.on_read == {}


def test_waits_name_the_writes_that_must_have_ended() -> None:
    # given 4 layers of 100 bytes, storages 0 to 3 saved at positions 1 to 4, read back at 7, 6, 5 and 4
    trace = chain([100, 100, 100, 100])

    # when storages 0 and 1 are swapped, back on demand: need is 200 in ops 3 and 4 (storages 2 and 3), and 100 in
    # op 0 (storage 0), op 1 (storage 1), op 2 (2), op 5 (2), op 6 (1) and op 7 (0)
    schedule = compile_schedule(trace, swapping(trace, (0, 7), (1, 6)))

    # then op 2 makes storage 2: of 0 and 1 one may still be there; op 3 makes storage 3: none may
    #   op 1: 100, and 100 while 0 is unfinished: 200 <= 200, no wait
    #   op 2: 100, and 200 while 0 and 1 are unfinished: 300 > 200, the write of 0 must have ended
    #   op 3: 200, and 100 while 1 is unfinished: 300 > 200, both must have ended
    assert schedule.peak_allocated_bytes == 200
    assert schedule.on_save == {1: Action(writes_done=1, back=()), 2: Action(writes_done=2, back=())}
    assert schedule.on_read == {
        (1, 0): Action(writes_done=0, back=(1,)),
        (0, 0): Action(writes_done=0, back=(0,)),
    }


def test_a_swap_back_starts_at_every_tick_of_its_position() -> None:
    # given storages 0 and 1 read back at one position, 2, and storage 2 saved there
    build = Build()
    first, second = build.op(make=100), build.op(make=100)
    build.save(first)
    build.save(second)
    build.op()
    later = build.op(make=10)
    build.save(later)
    build.read(second)
    build.read(first)
    build.op()
    trace = build.trace()

    # when storage 0 comes back there
    schedule = compile_schedule(trace, swapping(trace, (first, 4)))

    action = Action(writes_done=0, back=(0,))
    assert schedule.on_save == {2: action}
    assert schedule.on_read == {(1, 0): action, (0, 0): action}


def test_swaps_back_that_start_together_go_in_the_order_of_need() -> None:
    trace = chain([100, 100, 100])
    schedule = compile_schedule(trace, swapping(trace, (0, 3), (1, 3)))
    assert schedule.on_read[2, 0].back == (1, 0)


def test_a_storage_that_is_never_read_stays_away_until_it_is_freed() -> None:
    # given storage 0 saved, never read back, freed after op 2
    build = Build()
    lost = build.save(build.op(make=100))
    kept = build.op(make=60)
    build.op()
    build.free(lost)
    build.op(make=150)
    build.free(kept)
    trace = build.trace()

    schedule = compile_schedule(trace, swapping(trace, (lost, 4)))

    # then op 0 holds 100, op 1 and op 2 60, op 3 60 + 150
    assert schedule.peak_allocated_bytes == 210
    assert schedule.on_read == {}


def test_the_schedule_says_what_the_run_must_find() -> None:
    trace = chain([100, 50])
    schedule = compile_schedule(trace, swapping(trace, (0, 3)))
    assert schedule.saved == ((100, "float32"), (50, "float32"))


def test_the_schedule_says_where_each_storage_goes() -> None:
    # given three layers, whose backward reads the first two at positions 5 and 4
    trace = chain([100] * 3)
    first = Swap(storage=0, tier="disk", out_after_op=0, back_before_op=5)
    second = Swap(storage=1, tier="host", out_after_op=1, back_before_op=4)
    assert compile_schedule(trace, replace(swapping(trace), swaps=(first, second))).tiers == ("disk", "host")


def test_a_recipe_runs_at_the_ticks_before_the_op_that_the_plan_names() -> None:
    # given ops 0 to 2 save storages 0 to 2; ops 3 to 5 read storages 2 to 0
    trace = chain([100, 100, 100])
    dropping = replace(swapping(trace), recomputes=(Recompute(storages=(0,), recipe=(0,), before_op=5),))

    schedule = compile_schedule(trace, dropping)

    # then op 0 runs again at position 5; op 2 holds storages 1 and 2 only, 100 + 100, as 0 is gone once op 0 has ended
    assert schedule.dropped == {0: 0}
    assert schedule.swapped == ()
    assert schedule.on_save == {}
    assert schedule.on_read == {(0, 0): Action(writes_done=0, back=(), rebuild=(0,))}
    assert schedule.peak_allocated_bytes == 200


def test_only_the_saves_of_the_last_step_count() -> None:
    # given two equal steps; the last one has storages 3 and 4, saved at positions 5 and 6, read at 7 and 6
    trace = chain([100, 100], base=10, steps=2)
    schedule = compile_schedule(trace, swapping(trace, (3, 7)))
    assert schedule.swapped == (0,)
    assert schedule.on_read == {(0, 0): Action(writes_done=0, back=(0,))}


@settings(max_examples=150, deadline=None)
@given(traces())
def test_the_peak_is_what_counting_storage_by_storage_gives(trace: Trace) -> None:
    made = everything(trace)
    assert compile_schedule(trace, made).peak_allocated_bytes == max(held_per_op(trace, made, nothing_pending(trace)))


@settings(max_examples=150, deadline=None)
@given(traces())
def test_waits_hold_the_peak_when_no_write_ends_before_it_must(trace: Trace) -> None:
    made = everything(trace)
    schedule = compile_schedule(trace, made)
    assert max(held_per_op(trace, made, least_writes(trace, schedule))) == schedule.peak_allocated_bytes


@settings(max_examples=100, deadline=None)
@given(traces(), st.data())
def test_no_wait_is_for_more_than_it_must_be(trace: Trace, data: st.DataObject) -> None:
    # given a schedule with a wait for a number of writes
    made = everything(trace)
    schedule = compile_schedule(trace, made)
    actions = {id(a): a for a in (*schedule.on_save.values(), *schedule.on_read.values()) if a.writes_done}
    if not actions:
        return
    chosen = data.draw(st.sampled_from(list(actions.values())))

    # when it is for one write less
    def less(action: Action) -> Action:
        same = action.writes_done == chosen.writes_done
        return Action(writes_done=action.writes_done - 1, back=action.back) if same else action

    weaker = Schedule(
        **{name: getattr(schedule, name) for name in Schedule.__slots__ if name not in ("on_save", "on_read")},
        on_save={key: less(action) for key, action in schedule.on_save.items()},
        on_read={key: less(action) for key, action in schedule.on_read.items()},
    )

    # then the peak could be passed
    assert max(held_per_op(trace, made, least_writes(trace, weaker))) > schedule.peak_allocated_bytes
