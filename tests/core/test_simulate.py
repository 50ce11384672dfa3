"""simulate: times, bytes and spans by hand arithmetic; and compare."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan, Swap
from elbowroom.planners import plan
from elbowroom.simulate.simulate import compare, simulate
from elbowroom.step.schedule import compile_schedule
from elbowroom.timeline import Curve, Lane, Span, SpanKind, Timeline
from elbowroom.trace import Trace
from tests.core.build import Build, chain, machine, traces

RATES = st.sampled_from([10**7, 10**8, 10**9, 10**10, 10**12])


def bars(line: Timeline, kind: SpanKind) -> list[tuple[Lane, int, int, int | None, int | None]]:
    return [(s.lane, s.start_ns, s.end_ns, s.op, s.storage) for s in line.spans if s.kind == kind]


def curve(line: Timeline, tier: str) -> list[tuple[int, int]]:
    found = next(c for c in line.curves if c.tier == tier)
    return list(zip(found.at_ns, found.size_bytes, strict=True))


def swapping(trace: Trace, *swaps: tuple[int, int]) -> Plan:
    saved_at = {save.storage: save.saved_at for save in trace.saves}
    made = tuple(
        Swap(storage=storage, tier="disk", out_after_op=saved_at[storage] - 1, back_before_op=back)
        for storage, back in swaps
    )
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=10**9, swaps=made)


def test_the_empty_plan_is_the_estimate() -> None:
    # given 10 bytes of parameters and two layers of 100, ops of 10 ns
    line = simulate(chain([100, 100], base=10), machine(outside=7))

    # then op 0 holds 110, op 1 and op 2 210, op 3 110, and 10 are left
    assert line.source == "simulated"
    assert line.step_ns == 40
    assert curve(line, "device") == [(0, 110), (10, 210), (30, 110), (40, 10)]
    assert line.at_peak == (("activation", 200), ("parameter", 10))
    assert line.peak_allocated_bytes == 210
    assert line.peak_reserved_bytes == 210
    assert line.peak_device_bytes == 217
    assert line.stall_ns == 0
    assert len(line.curves) == 1
    assert bars(line, "op") == [("compute", 10 * op, 10 * op + 10, op, None) for op in range(4)]


def test_a_copy_that_is_hidden_costs_nothing() -> None:
    # given three layers of 5 bytes, a link that moves a byte in a ns, and storage 0 back at position 4 for op 5
    trace = chain([5, 5, 5])
    line = simulate(trace, machine(), swapping(trace, (0, 4)))

    # then it is written from 10 to 15 and read from 40 to 45, before op 5 starts at 50
    assert bars(line, "swap_out") == [("disk write", 10, 15, None, 0)]
    assert bars(line, "swap_back") == [("disk read", 40, 45, None, 0)]
    assert line.stall_ns == 0
    assert line.step_ns == 60
    assert (line.swapped_out_bytes, line.swapped_back_bytes) == (5, 5)
    # op 1 starts before the write ends: 10; at position 2 it has: op 2 holds storages 1 and 2; op 4 has 0 and 1
    assert curve(line, "device") == [(0, 5), (10, 10), (50, 5), (60, 0)]
    assert curve(line, "disk") == [(0, 0), (10, 5), (60, 0)]


def test_compute_waits_for_data() -> None:
    # given storage 0 of 100 bytes back on demand at position 5, behind a latency of 3 ns
    trace = chain([100, 5, 5])
    line = simulate(trace, machine(latency=3), swapping(trace, (0, 5)))

    # then its write takes 103 ns and must have ended before op 3: op 2 holds 100 + 5 + 5 at most with it still there
    #   need: op 0 100, op 1 5, op 2 10, op 3 10, op 4 5, op 5 100; P* = 100
    #   at position 1, op 1: 5 + 100 unfinished > 100, so the write, 10 to 113, is waited for at once
    assert bars(line, "stall") == [("compute", 10, 113, 1, 0), ("compute", 153, 256, 5, 0)]
    # ops 1 to 4 run from 113 to 153, the read of 103 ns from there, op 5 after it
    assert bars(line, "swap_back") == [("disk read", 153, 256, None, 0)]
    assert line.step_ns == 266
    assert line.stall_ns == 103 + 103
    assert curve(line, "device") == [(0, 100), (113, 5), (123, 10), (143, 5), (153, 100), (266, 0)]


def test_writes_run_one_after_the_other() -> None:
    # given storages 0 and 1 of 30 bytes, saved at 10 and 20 ns, and room for them at hand
    trace = chain([30, 30, 5, 5])
    line = simulate(trace, machine(), swapping(trace, (0, 7), (1, 6)))

    # then need is 30 in ops 0 and 1 (storage 1), 5 to 10 in ops 2 to 5, and 30 in op 6 (storage 1) and op 7 (0)
    assert line.peak_allocated_bytes == 30
    # at position 1 op 1 needs 30 (storage 1) with 0 away: wait for 0, from 10 to 40; op 1 then ends at 50;
    # at position 2 op 2 needs 5 + unfinished 30 > 30: wait for 1, from 50 to 80
    assert bars(line, "swap_out") == [("disk write", 10, 40, None, 0), ("disk write", 50, 80, None, 1)]
    assert bars(line, "stall")[:2] == [("compute", 10, 40, 1, 0), ("compute", 50, 80, 2, 1)]


def test_a_write_that_has_not_ended_when_its_storage_is_needed_is_given_up() -> None:
    # given a disk so slow, 2 bytes a nanosecond, that storage 0 is being written when its swap back starts, and room
    # for it all the time: the peak, 300, is in op 2, before storage 0 is idle
    build = Build()
    first = build.save(build.op(make=100))
    second = build.save(build.op(make=100))
    build.op(temporary=100)
    build.idle(first)
    build.op()
    build.read(second)
    build.op()
    build.read(first)
    build.op()
    trace = build.trace()
    line = simulate(trace, machine(out=2 * 10**9), swapping(trace, (first, 5)))

    # then nothing comes back, as it never left: no stall, and 200 bytes all the time
    assert line.stall_ns == 0
    assert line.step_ns == 60
    assert bars(line, "swap_back") == []
    assert bars(line, "swap_out") == [("disk write", 10, 60, None, 0)]
    assert curve(line, "device") == [(0, 100), (10, 200), (20, 300), (30, 200)]

    # and where that takes many steps, the disk is busy for nothing when the next ones ask for it
    line = simulate(trace, machine(out=10**7), swapping(trace, (first, 5)))
    assert bars(line, "swap_out") == []


def test_a_write_that_never_started_before_it_is_given_up_is_not_made() -> None:
    # given two such storages: the second write waits behind the first
    build = Build()
    first, second = build.save(build.op(make=100)), build.save(build.op(make=100))
    build.op(temporary=100)
    build.idle(first)
    build.idle(second)
    build.op()
    build.read(second)
    build.op()
    build.read(first)
    build.op()
    trace = build.trace()
    line = simulate(trace, machine(out=2 * 10**9), swapping(trace, (first, 5), (second, 4)))

    assert bars(line, "swap_out") == [("disk write", 10, 60, None, first)]
    assert line.swapped_back_bytes == 0


def test_bytes_leave_at_the_first_tick_after_the_write_has_ended() -> None:
    # given a write that ends at 15, at an op's start no tick, and ticks at positions 1 and 4
    build = Build()
    first = build.save(build.op(make=5))
    build.op()
    build.op()
    build.op(make=50)
    other = build.save(build.storage(1))
    build.op()
    build.read(other)
    build.op()
    build.read(first)
    build.op(make=5)
    trace = build.trace()
    line = simulate(trace, machine(), swapping(trace, (first, 6)))

    # then ops 1 and 2 still hold it; op 3 makes 50 (55) and 1 is allocated after it (56); from position 4 it is gone;
    # at position 6 it comes back (56, 5 ns) and op 6 makes 5 (61)
    assert curve(line, "device") == [(0, 5), (30, 56), (40, 51), (60, 56), (65, 61)]


def test_swaps_to_the_host_use_the_copy_lanes() -> None:
    trace = chain([5, 5, 5])
    below = machine()
    host = Machine(
        name="gpu",
        tiers=(below.tiers[0], replace(below.tiers[1], name="host")),
        links=(replace(below.links[0], lower="host"),),
    )
    made = swapping(trace, (0, 4))
    line = simulate(trace, host, replace(made, swaps=(replace(made.swaps[0], tier="host"),)))
    assert [s.lane for s in line.spans if s.storage == 0] == ["copy out", "copy back"]
    assert [c.tier for c in line.curves] == ["device", "host"]


def test_a_shared_link_is_divided() -> None:
    trace = chain([5, 5, 5])
    shared = machine()
    shared = replace(shared, links=(replace(shared.links[0], shared_by=5),))
    line = simulate(trace, shared, swapping(trace, (0, 4)))
    # 5 bytes at a fifth of a byte per ns: written from 10 to 35, and op 2 waits for that from 20 on (its two storages
    # are the peak), so that position 4 is reached at 40 + 15
    assert bars(line, "swap_out") == [("disk write", 10, 35, None, 0)]
    assert bars(line, "swap_back") == [("disk read", 55, 80, None, 0)]


def test_a_plan_that_may_not_run_is_refused() -> None:
    trace = chain([100, 100])
    with pytest.raises(InvalidPlan, match="back_before_op 9 is after its first read"):
        simulate(trace, machine(), swapping(trace, (0, 9)))


@settings(max_examples=150, deadline=None)
@given(traces(), RATES, RATES, st.integers(0, 50))
def test_the_peak_is_the_same_at_any_speed_of_the_link(trace: Trace, out: int, back: int, latency: int) -> None:
    made = plan(trace, machine(), 10**9, "swap_all", min_size=1)
    line = simulate(trace, machine(out, back, latency), made)
    assert line.peak_allocated_bytes == compile_schedule(trace, made).peak_allocated_bytes
    assert sum(line.breakdown().values()) == line.peak_allocated_bytes
    assert line.step_ns == sum(op.duration_ns for op in trace.ops) + line.stall_ns
    assert curve(line, "device")[-1][0] <= line.step_ns


@settings(max_examples=100, deadline=None)
@given(traces(), RATES, RATES)
def test_no_lane_does_two_things_at_once(trace: Trace, out: int, back: int) -> None:
    made = plan(trace, machine(out, back), 10**9, "swap_all", min_size=1)
    line = simulate(trace, machine(out, back), made)
    free: dict[Lane, int] = {}
    for span in line.spans:
        assert span.start_ns >= free.get(span.lane, 0)
        free[span.lane] = span.end_ns
    returned = {s.storage for s in line.spans if s.kind == "swap_back"}
    assert returned <= {s.storage for s in line.spans if s.kind == "swap_out"}


def measured(peak: int, step_ns: int, *spans: Span) -> Timeline:
    return Timeline(
        source="measured",
        trace_id="",
        step_ns=step_ns,
        spans=spans,
        curves=(Curve(tier="device", kind="allocated", at_ns=(0,), size_bytes=(peak,)),),
    )


def test_compare_puts_figures_beside_each_other_in_either_order() -> None:
    # given a simulated peak of 210 and step of 40 ns, measured 200 and 80 ns with a stall of 8
    simulated = simulate(chain([100, 100], base=10), machine())
    stall = Span(lane="compute", kind="stall", name="wait for data", start_ns=2, end_ns=10)
    other = measured(200, 80, stall)

    found = compare(other, simulated)

    assert found == compare(simulated, other)
    assert found.peak_error_bytes == 10
    assert found.peak_error == pytest.approx(0.05)  # 10 / 200
    assert found.step_ratio == pytest.approx(0.5)  # 40 / 80
    assert (found.stall_simulated_ns, found.stall_measured_ns) == (0, 8)
    assert found.rows() == (
        ("peak allocated", "210 B", "200 B", "10 B (+5.0%)"),
        ("step time", "40 ns", "80 ns", "-40 ns (-50.0%)"),
        ("stall", "0 ns", "8 ns", "-8 ns (-100.0%)"),
        ("swapped out", "0 B", "0 B", "0 B"),
        ("swapped back", "0 B", "0 B", "0 B"),
    )


def test_compare_refuses_two_of_a_kind() -> None:
    simulated = simulate(chain([100]), machine())
    with pytest.raises(UsageError, match="given two simulated timelines; allowed is one simulated and one measured"):
        compare(simulated, simulated)
