"""The reserved curve of a simulated step on a machine with a caching allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan, Swap
from elbowroom.simulate import simulate
from elbowroom.timeline import Curve, Timeline
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

    # then its block serves the third layer, and the block of a freed one serves it when it is back
    assert kept.peak_reserved_bytes == kept.peak_allocated_bytes == 90 * MIB
    assert swapped.peak_allocated_bytes == 60 * MIB
    assert reserved(swapped).size_bytes == (30 * MIB, 60 * MIB)


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
