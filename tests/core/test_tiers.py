"""Swaps over two links, and swaps of what outlives the step: bytes, times and refusals by hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import InvalidPlan
from elbowroom.machine import Link, Machine, Tier, TierName
from elbowroom.plan import Plan, Swap
from elbowroom.planners import check
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, need
from elbowroom.timeline import Timeline
from elbowroom.trace import Event, Storage, Trace
from tests.core.build import Build, chain, machine
from tests.core.plans import linked_traces, passes


def three_tiers(host: int = 10**12, disk_ns: int = 1, link_ns: int = 1) -> Machine:
    """A device over a host over a disk, with so many nanoseconds for a byte on either link."""
    to_host = Link(
        upper="device", lower="host", out_bytes_per_s=10**9 // link_ns, back_bytes_per_s=10**9 // link_ns, latency_ns=0
    )
    to_disk = Link(
        upper="host", lower="disk", out_bytes_per_s=10**9 // disk_ns, back_bytes_per_s=10**9 // disk_ns, latency_ns=0
    )
    sizes: dict[TierName, int] = {"device": 10**12, "host": host, "disk": 10**12}
    tiers = tuple(Tier(name=name, capacity_bytes=size) for name, size in sizes.items())
    return Machine(name="three", tiers=tiers, links=(to_host, to_disk))


def planned(trace: Trace, *swaps: Swap, budget: int = 10**9) -> Plan:
    in_order = tuple(sorted(swaps, key=lambda swap: swap.out_after_op))
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget, swaps=in_order)


def away(storage: int, out: int, back: int, tier: TierName = "disk") -> Swap:
    return Swap(storage=storage, tier=tier, out_after_op=out, back_before_op=back)


def bars(line: Timeline) -> list[tuple[str, int, int, int | None]]:
    found = [(s.lane, s.start_ns, s.end_ns, s.storage) for s in line.spans if s.kind in ("swap_out", "swap_back")]
    return sorted(found, key=lambda bar: bar[1])


def stalls(line: Timeline) -> list[tuple[str, int, int]]:
    return [(s.name, s.start_ns, s.end_ns) for s in line.spans if s.kind == "stall"]


def curve(line: Timeline, tier: str) -> list[tuple[int, int]]:
    found = next(c for c in line.curves if c.tier == tier)
    return list(zip(found.at_ns, found.size_bytes, strict=True))


def refusal(trace: Trace, plan: Plan, on: Machine | None = None) -> str:
    with pytest.raises(InvalidPlan) as caught:
        check(trace, plan, on)
    return str(caught.value)


# Two links.


def test_what_goes_to_the_disk_passes_through_the_host() -> None:
    # given five layers of 5 bytes; storage 0 is saved at 10 ns and comes back at position 8, for op 9
    trace = chain([5] * 5)
    line = simulate(trace, three_tiers(disk_ns=2), planned(trace, away(0, 0, 8)))

    # then it is copied from 10 to 15 and written for 10 ns, read for 10 ns from 80 and copied back by 95
    assert bars(line) == [
        ("copy out", 10, 15, 0), ("disk write", 15, 25, 0), ("disk read", 80, 90, 0), ("copy back", 90, 95, 0)
    ]  # fmt: skip
    assert stalls(line) == [("wait for data", 90, 95)]
    assert line.step_ns == 105
    assert (line.swapped_out_bytes, line.swapped_back_bytes) == (5, 5)
    # and the host holds it from the start of the first copy of two to the end of the second, the disk until it is freed
    assert curve(line, "host") == [(0, 0), (10, 5), (25, 0), (80, 5), (95, 0)]
    assert curve(line, "disk") == [(0, 0), (15, 5), (105, 0)]


def test_what_goes_to_the_disk_past_the_host_is_counted_beside_what_goes_to_the_host() -> None:
    # given a machine whose disk is linked to the device, and storages of 5 bytes for the disk and for the host
    to_host, to_disk = three_tiers(disk_ns=2).links
    on = replace(three_tiers(), links=(to_host, replace(to_disk, upper="device")))
    line = simulate(chain([5] * 5), on, planned(chain([5] * 5), away(0, 0, 8), away(1, 1, 7, "host")))

    # then each takes its own way, the disk's 10 ns: out from 10 and from 20, back at positions 8 (80) and 7 (70)
    assert bars(line) == [
        ("disk write", 10, 20, 0), ("copy out", 20, 25, 1), ("copy back", 70, 75, 1), ("disk read", 80, 90, 0)
    ]  # fmt: skip
    assert (line.swapped_out_bytes, line.swapped_back_bytes) == (10, 10)


def test_a_storage_that_waits_on_the_host_comes_back_from_there() -> None:
    # given storages 0 and 1 for a disk that takes 20 ns a byte: storage 0 is written from 15 to 115, and storage 1
    # still waits for that when it is wanted back, at position 5
    trace = chain([5, 5, 5, 5])
    line = simulate(trace, three_tiers(disk_ns=20), planned(trace, away(0, 0, 7), away(1, 1, 5)))

    # then storage 1 is copied from the host, and storage 0 read from the disk once it is there: position 7 is at 70
    assert bars(line) == [
        ("copy out", 10, 15, 0), ("disk write", 15, 115, 0), ("copy out", 20, 25, 1), ("copy back", 50, 55, 1),
        ("disk read", 115, 215, 0), ("copy back", 215, 220, 0),
    ]  # fmt: skip
    assert curve(line, "host") == [(0, 0), (10, 5), (20, 10), (55, 5), (115, 5), (220, 0)]


def test_a_copy_out_waits_for_room_on_the_host() -> None:
    # given a host of 5 bytes and a disk of 4 ns a byte
    trace = chain([5, 5, 5, 5, 5, 5])
    line = simulate(trace, three_tiers(host=5, disk_ns=4), planned(trace, away(0, 0, 10), away(1, 1, 9)))

    # then storage 0 is on the host from 10 until it is written, at 35; storage 1 is copied only then
    assert bars(line)[:4] == [
        ("copy out", 10, 15, 0), ("disk write", 15, 35, 0), ("copy out", 35, 40, 1), ("disk write", 40, 60, 1)
    ]  # fmt: skip
    assert max(size for _, size in curve(line, "host")) == 5


def test_what_stays_on_the_host_leaves_less_room_for_what_passes() -> None:
    # given a host of 9 bytes, 5 of them for storage 1
    trace = chain([5, 5, 5, 5])
    plan = planned(trace, away(0, 0, 7), away(1, 1, 6, "host"))
    assert refusal(trace, plan, three_tiers(host=9)) == (
        "the plan leaves 4 B (4 bytes) of 'host' for storages on their way to the disk, the largest of which has "
        "5 B (5 bytes); give 'host' more room or swap less to it"
    )
    check(trace, plan, three_tiers(host=10))
    assert "puts up to 5 B (5 bytes) on 'host', which holds 4 B" in refusal(trace, plan, three_tiers(host=4))


def test_a_machine_without_a_link_to_the_disk_is_refused() -> None:
    trace, three = chain([5, 5]), three_tiers()
    lacking = replace(three, links=three.links[:1])
    said = refusal(trace, planned(trace, away(0, 0, 3)), lacking)
    assert "the plan swaps to 'disk', which machine 'three' does not link to its device" in said


# Across the end of the step.


def training(state: int = 100, forward: int = 4) -> tuple[Trace, int]:
    """Ops of 10 ns: forward ones, a peak of 50 bytes in the middle, and an optimizer step that uses a state."""
    build = Build()
    kept = build.storage(state, "optimizer_state")
    first = build.save(build.op("forward", 10, make=10))
    for _ in range(forward - 2):
        build.op("forward", 10, temporary=50)
    build.op("forward", 10)
    build.phase = "backward"
    build.read(first)
    build.op("backward", 10)
    build.free(first)
    build.phase = "optimizer"
    build.op("optimizer", 10, reads=(kept,), writes=(kept,))
    return build.trace(), kept


def test_a_state_has_a_window_from_one_steps_use_to_the_nexts() -> None:
    trace, kept = training()
    step = last_step(trace)
    assert len(step.saves) == 1
    assert step.storage.tolist()[1:] == [kept]
    # used by op 5 alone: idle from position 6, the end, to position 5 of the next step
    assert (step.idle_from[1], step.first_read[1], step.size[1]) == (6, 5, 100)


def test_a_state_that_is_away_across_the_end_frees_the_start_of_the_step() -> None:
    # given a state of 100 bytes away from the end of the step to op 5, over a link of one ns a byte
    trace, kept = training()
    plan = planned(trace, away(kept, 5, 5))
    step = last_step(trace)

    # then ops 1 and 2 need 10 + 50, op 5 100 (its activation is freed), and the start of the step 100 - 100
    assert int(need(step, moves_of_plan(step, plan)).max()) == 100
    line = simulate(trace, machine(), plan)
    assert line.peak_allocated_bytes == 100

    # and in the steady state the write of the last step, 100 ns from its end, is waited for where 10 + 50 + 100 would
    # be held: at the last place before that with control, position 0 (10 + 100 at op 0 is over 100 too)
    assert stalls(line)[0] == ("wait for room", 0, 100)
    # it is on the device meanwhile
    assert curve(line, "device")[:2] == [(0, 100), (100, 10)]
    # op 5 starts at 150, reads it from there to 250, and ends at 260
    assert stalls(line)[1:] == [("wait for data", 150, 250)]
    assert line.step_ns == 260
    assert bars(line) == [("disk write", 0, 100, kept), ("disk read", 150, 250, kept)]


def test_a_state_comes_back_ahead_where_there_is_room() -> None:
    # given a faster link, 10 bytes a ns, and the state back before op 4, a read
    trace, kept = training()
    line = simulate(trace, machine(10**10, 10**10), planned(trace, away(kept, 5, 4)))

    # then its write takes until 10, and its read from 50 to 60 is hidden by op 4
    assert line.peak_allocated_bytes == 110
    assert line.step_ns == 60
    assert bars(line) == [("disk write", 0, 10, kept), ("disk read", 40, 50, kept)]
    # op 0 may run beside the write: 10 + 100 are no more than the peak
    assert curve(line, "device")[:4] == [(0, 110), (10, 60), (30, 10), (40, 110)]


def test_a_state_that_starts_back_at_the_end_of_a_step_is_waited_for_in_the_next() -> None:
    # given a state of 100 bytes that op 0 alone uses, back from the end of the step on, and 50 bytes in op 2
    build = Build()
    kept = build.storage(100, "optimizer_state")
    build.op(reads=(kept,))
    build.op()
    build.op(temporary=50)
    build.op()
    trace = build.trace()

    # then op 0 waits for its copy, from 0 to 100, and op 1 for its write, which begins once op 0 has ended
    line = simulate(trace, machine(), planned(trace, away(kept, 0, 4)))
    assert stalls(line) == [("wait for data", 0, 100), ("wait for room", 110, 210)]
    assert line.step_ns == 240


def test_the_place_of_a_state_on_the_lower_tier_is_always_there() -> None:
    trace, kept = training()
    assert curve(simulate(trace, machine(10**10, 10**10), planned(trace, away(kept, 5, 4))), "disk")[0] == (0, 100)
    assert "puts up to 100 B" in refusal(trace, planned(trace, away(kept, 5, 4)), machine(disk=99))


@pytest.mark.parametrize(
    ("swap", "what"),
    [
        (away(0, 4, 5), "out_after_op 4 is not its last use before it is idle; allowed is 5"),
        (away(0, 5, 6), "back_before_op 6 is not before its next use; allowed are 0 to 5, in the next step, or 7 to 6"),
        (away(0, 5, 2), "back_before_op 2 is no position at which autograd saves or reads a storage, nor its next use"),
    ],
)
def test_a_state_that_is_misplaced_is_refused(swap: Swap, what: str) -> None:
    trace, _ = training()
    assert what in refusal(trace, planned(trace, swap))


@pytest.mark.parametrize("category", ["parameter", "buffer", "input"])
def test_nothing_else_that_outlives_the_step_has_a_window(category: str) -> None:
    trace, kept = training()
    storages = (replace(trace.storages[0], category=category), *trace.storages[1:])
    trace = replace(trace, storages=storages)
    assert last_step(trace).storage.tolist() == [1]
    assert "autograd does not save it in the last step" in refusal(trace, planned(trace, away(kept, 5, 5)))


def test_a_gradient_that_is_made_in_the_step_may_be_away_until_the_optimizer_uses_it() -> None:
    # given a gradient of 100 bytes made by op 1, used by op 4 and freed, and ops in between that take 100
    build = Build()
    held = build.save(build.op(make=10))
    gradient = build.op(make=100, category="gradient")
    build.read(held)
    build.op(temporary=100)
    build.op(temporary=100)
    build.op(reads=(gradient,))
    build.free(gradient)
    trace = build.trace()
    step = last_step(trace)
    assert (step.idle_from[1], step.first_read[1]) == (2, 4)

    # then with it away the step needs 110: the write, 20 to 120, is waited for at once
    line = simulate(trace, machine(), planned(trace, away(gradient, 1, 4)))
    assert line.peak_allocated_bytes == 110
    assert stalls(line) == [("wait for room", 20, 120), ("wait for data", 140, 240)]


# Both, on any trace at any speed.


TARGETS: tuple[TierName | None, ...] = ("host", "disk", None)


@st.composite
def stateful_traces(draw: st.DrawFn) -> Trace:
    """A step with two states that some of its ops use."""
    trace = draw(linked_traces())
    first, end = trace.steps[-1]
    storages = (
        *trace.storages,
        Storage(size_bytes=30, category="optimizer_state"),
        Storage(size_bytes=60, category="gradient"),
    )
    kept = (len(storages) - 2, len(storages) - 1)
    ops = list(trace.ops)
    for storage in kept:
        for op in draw(st.lists(st.integers(first, end - 1), min_size=1, max_size=3)):
            ops[op] = replace(ops[op], reads=(*ops[op].reads, storage))
    there = tuple(Event(-1, storage, storages[storage].size_bytes) for storage in kept)
    return replace(trace, ops=tuple(ops), storages=storages, events=(*there, *trace.events))


@settings(max_examples=150, deadline=None)
@given(stateful_traces(), st.sampled_from([1, 3, 20]), st.sampled_from([1, 7, 50]), st.integers(60, 150), st.data())
def test_peak_lanes_and_host_hold_at_any_speed(
    trace: Trace, link_ns: int, disk_ns: int, host: int, data: st.DataObject
) -> None:
    # given any windows swapped to host or disk, as far as that may be
    on, step = three_tiers(host=host, disk_ns=disk_ns, link_ns=link_ns), last_step(trace)
    plan = planned(trace)
    for n, storage in enumerate(step.storage.tolist()):
        tier: TierName | None = data.draw(st.sampled_from(TARGETS))
        back = step.first_read[n] if step.returns[n] else step.end_op
        if tier is not None:
            changed = planned(trace, *plan.swaps, away(storage, int(step.saved_at[n]) - 1, int(back), tier))
            plan = changed if passes(trace, changed, on) else plan

    line = simulate(trace, on, plan)

    # then the device holds what need says, the host no more than it has, and no lane does two things at once
    assert line.peak_allocated_bytes == int(need(step, moves_of_plan(step, plan)).max())
    assert sum(line.breakdown().values()) == line.peak_allocated_bytes
    assert line.peak_of("host", "allocated") <= host
    free: dict[str, int] = {}
    for span in line.spans:
        assert span.start_ns >= free.get(span.lane, 0)
        free[span.lane] = span.end_ns
    assert line.step_ns == sum(op.duration_ns for op in trace.ops[step.first_op :]) + line.stall_ns


def test_a_storage_that_is_asked_for_late_gets_no_room_that_was_given_before() -> None:
    # given room for 60 on the host besides a state of 30, a gradient of 60 and six saves of 1 that go to the disk;
    # the first read is asked for at 151 while the gradient takes all the room until it has been written
    build = Build()
    for _ in range(6):
        build.save(build.op(make=1, ns=0))
    for saved in range(1, 7):
        build.read(saved - 1)
    trace = build.trace()
    first = trace.steps[-1].first_op
    kept = len(trace.storages), len(trace.storages) + 1
    storages = (
        *trace.storages,
        Storage(size_bytes=30, category="optimizer_state"),
        Storage(size_bytes=60, category="gradient"),
    )
    ops = (replace(trace.ops[first], reads=kept), *trace.ops[first + 1 :])
    there = tuple(Event(-1, storage, storages[storage].size_bytes) for storage in kept)
    trace = replace(trace, ops=(*trace.ops[:first], *ops), storages=storages, events=(*there, *trace.events))
    on, step = three_tiers(host=90, disk_ns=1, link_ns=1), last_step(trace)
    plan = planned(trace)
    for n, storage in enumerate(step.storage.tolist()):
        tier: TierName = "host" if storage == kept[0] else "disk"
        more = planned(trace, *plan.swaps, away(storage, int(step.saved_at[n]) - 1, int(step.first_read[n]), tier))
        plan = more if passes(trace, more, on) else plan

    # then the host never holds more than it has
    assert simulate(trace, on, plan).peak_of("host", "allocated") <= 90
