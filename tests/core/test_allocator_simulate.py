"""The reserved curve of a simulated step on a machine with a caching allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan, Swap
from elbowroom.simulate.driver_waits import CALL_NS, PAGE_NS, delayed, delays_of
from elbowroom.simulate.lanes import play
from elbowroom.simulate.reserved_curve import Driven
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan
from elbowroom.timeline import Curve, Timeline
from elbowroom.trace import OnStream
from tests.core.build import Build, chain, machine

MIB = 2**20


def gpu(settings: str = "") -> Machine:
    return replace(machine(outside=7), allocator=settings)


def reserved(line: Timeline) -> Curve:
    return next(curve for curve in line.curves if curve.kind == "reserved")


def test_a_machine_without_a_caching_allocator_has_no_reserved_curve() -> None:
    line = simulate(chain([12 * MIB]), machine())

    assert [curve.kind for curve in line.curves] == ["allocated"]
    assert line.peak_reserved_bytes == line.peak_allocated_bytes == 12 * MIB


def test_the_reserved_curve_is_that_of_the_allocator() -> None:
    # given two layers that make 5 MiB (a segment of 20) and 30 MiB (one of its own), each op taking 10 ns
    line = simulate(chain([5 * MIB, 30 * MIB]), gpu())

    # then the segments are reserved one after the other, and stay
    assert reserved(line).at_ns == (0, 10)
    assert reserved(line).size_bytes == (20 * MIB, 50 * MIB)
    assert line.peak_allocated_bytes == 35 * MIB
    assert line.peak_reserved_bytes == 50 * MIB
    assert line.peak_device_bytes == 50 * MIB + 7


def test_a_step_finds_the_cache_that_the_steps_before_it_left() -> None:
    # given a first step with a temporary of 40 MiB that the last step does not have
    build = Build()
    build.op("forward", temporary=40 * MIB)
    build.end_step()
    build.op("forward", temporary=12 * MIB)
    line = simulate(build.trace(), gpu())

    # then its 40 MiB are still reserved, and serve the 12
    assert reserved(line).size_bytes == (40 * MIB,)
    assert line.peak_allocated_bytes == 12 * MIB


def test_a_cache_that_the_training_empties_is_not_found_again() -> None:
    # given the same two steps, with the cache emptied between them, or before the last step's second temporary
    build = Build()
    build.op("forward", temporary=40 * MIB)
    build.end_step()
    build.op("forward", temporary=12 * MIB)
    build.op("forward", temporary=30 * MIB)
    trace = build.trace()

    between, within = (simulate(replace(trace, empties=(place,)), gpu()) for place in (2, 4))

    # then the step reserves 12 and 30 MiB, both at the end; or serves 12 from the 40, and then holds 30 alone
    assert reserved(between).size_bytes == (12 * MIB, 42 * MIB)
    assert reserved(within).size_bytes == (40 * MIB, 30 * MIB)


def test_memory_of_another_stream_is_not_reused() -> None:
    # given two steps of a temporary of 40 and one of 30 MiB, the second one on another stream
    build = Build()
    for _ in range(2):
        build.op("forward", temporary=40 * MIB)
        build.op("forward", temporary=30 * MIB)
        build.end_step()
    trace = build.trace()
    others = tuple(OnStream(n, 1) for n, each in enumerate(trace.storages) if each.size_bytes == 30 * MIB)

    alone, beside = (simulate(replace(trace, streams=streams), gpu()) for streams in ((), others))

    # then 30 lie in the 40, or beside them
    assert max(reserved(alone).size_bytes) == 40 * MIB
    assert max(reserved(beside).size_bytes) == 70 * MIB


def test_the_settings_of_the_machine_count() -> None:
    line = simulate(chain([5 * MIB, 30 * MIB]), gpu("expandable_segments:True"))

    # 5 + 30 MiB in pages of 20
    assert line.peak_reserved_bytes == 40 * MIB


def test_settings_that_are_not_allowed_are_refused() -> None:
    with pytest.raises(UsageError, match=r"allocator settings: given 'exactly'"):
        simulate(chain([5 * MIB]), gpu("exactly"))


def test_a_plan_is_followed_storage_by_storage() -> None:
    # given three layers of 30 MiB, the first swapped out while the others run: 10 ns an op, a byte a ns
    trace = chain([30 * MIB, 30 * MIB, 30 * MIB], ns=10**9)
    plan = Plan(
        trace_id=trace.id,
        planner="by hand",
        budget_bytes=60 * MIB,
        swaps=(Swap(storage=0, tier="disk", out_after_op=0, back_before_op=5),),
    )
    kept, swapped = simulate(trace, gpu()), simulate(trace, gpu(), plan)

    # then its block serves the third layer, and the block of a freed one serves it when it is back; both are there from
    # the steps before
    assert kept.peak_reserved_bytes == kept.peak_allocated_bytes == 90 * MIB
    assert swapped.peak_allocated_bytes == 60 * MIB
    assert reserved(swapped).size_bytes == (60 * MIB,)


def test_the_reserved_curve_is_never_below_the_allocated_one() -> None:
    trace = chain([30 * MIB, 14 * MIB, 3 * MIB, 22 * MIB], ns=10**7, base=5 * MIB, temporary=9 * MIB, steps=2)
    first = len(trace.saves) // 2
    plan = Plan(
        trace_id=trace.id,
        planner="by hand",
        budget_bytes=100 * MIB,
        swaps=(
            Swap(storage=trace.saves[first].storage, tier="disk", out_after_op=8, back_before_op=15),
            Swap(storage=trace.saves[first + 1].storage, tier="disk", out_after_op=9, back_before_op=14),
        ),
    )
    for line in (simulate(trace, gpu()), simulate(trace, gpu(), plan)):
        allocated = next(curve for curve in line.curves if curve.kind == "allocated" and curve.tier == "device")
        for at, size in zip(allocated.at_ns, allocated.size_bytes, strict=True):
            held = [
                value for time, value in zip(reserved(line).at_ns, reserved(line).size_bytes, strict=True) if time <= at
            ]
            assert held[-1] >= size


def test_a_budget_is_the_allocators_limit() -> None:
    # given layers of 30 and 40 MiB, the first away while the second is there: a byte a ns, a second for each op
    trace = chain([30 * MIB, 40 * MIB], ns=10**9)
    swap = Swap(storage=0, tier="disk", out_after_op=0, back_before_op=3)

    def under(budget: int) -> Timeline:
        return simulate(trace, gpu(), Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget, swaps=(swap,)))

    # then with room for both, each has a segment
    assert under(80 * MIB).peak_reserved_bytes == 70 * MIB
    # and with less, the cache is emptied once, in the first step: from then on the larger segment serves both
    assert under(50 * MIB).peak_reserved_bytes == 40 * MIB
    assert under(50 * MIB).stall_ns == under(80 * MIB).stall_ns


def test_where_blocks_do_not_fit_it_says_what_would_be_reserved_without_a_limit() -> None:
    # given layers of 30 and 25 MiB, which are all there together: a segment of 30, and one of 26, in steps of 2 MiB
    trace = chain([30 * MIB, 25 * MIB])
    plan = Plan(trace_id=trace.id, planner="by hand", budget_bytes=55 * MIB)
    assert simulate(trace, gpu(), plan).peak_reserved_bytes == 56 * MIB


def test_compute_waits_where_the_driver_is_asked_in_every_step() -> None:
    # given a step of two layers, and a copy that is under way for 5 ns more when the second op could start
    trace = chain([30 * MIB, 40 * MIB], ns=10**7)
    swap = Swap(storage=0, tier="disk", out_after_op=0, back_before_op=3)
    plan = Plan(trace_id=trace.id, planner="by hand", budget_bytes=80 * MIB, swaps=(swap,))
    step = last_step(trace)
    done = play(step, moves_of_plan(step, plan), gpu(), ["disk"])
    point = int(step.point_of[1]) + 1
    done = replace(done, copies=(done.copies[0]._replace(end_ns=int(done.position_ns[1]) + 5),))

    # then to empty the cache takes until the copy has ended, and a call for each of two segments and for the new one
    driven = Driven(point, 40 * MIB, 70 * MIB, 2, empties=True)
    assert delays_of(step, [driven], done, "") == {1: 5 + 3 * CALL_NS}
    # and with expandable segments a call for each page of 20 MiB, 5 in 110 MiB and one for what is left over
    assert delays_of(step, [driven], done, "expandable_segments:True") == {1: 5 + 6 * PAGE_NS}
    # and a second time at the same op the copy has ended while compute waited
    assert delays_of(step, [driven, driven], done, "") == {1: 5 + 6 * CALL_NS}
    # and a new segment alone is one call
    assert delays_of(step, [Driven(point, 40 * MIB, 0, 0, empties=False)], done, "") == {1: CALL_NS}
    assert delayed(step, {1: 5}).at_ns.tolist() == [0, 10**7, 2 * 10**7 + 5, 3 * 10**7 + 5, 4 * 10**7 + 5]
