"""What a step moves under a plan: by kind of storage, and on each link that the bytes take."""

from __future__ import annotations

from dataclasses import replace

from elbowroom.answers.moved_bytes import MovedBytes, moved_bytes
from elbowroom.machine import Link, Machine, Tier
from elbowroom.plan import Plan, Swap
from elbowroom.planners import plan
from elbowroom.report.subject import subject_of
from elbowroom.report.terminal import plan_rendered
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Span
from elbowroom.trace import Trace
from tests.core.build import chain, machine
from tests.core.test_answer import text_of
from tests.core.test_uses import used

GIB = 2**30


def through_the_host() -> Machine:
    links = (
        Link(upper="device", lower="host", out_bytes_per_s=10**9, back_bytes_per_s=10**9, latency_ns=0),
        Link(upper="host", lower="disk", out_bytes_per_s=10**9, back_bytes_per_s=10**9, latency_ns=0),
    )
    names = ("device", "host", "disk")
    return Machine(name="test", tiers=tuple(Tier(name=name, capacity_bytes=GIB) for name in names), links=links)


def of_plan(trace: Trace, where: Machine, *swaps: Swap) -> tuple[MovedBytes, ...]:
    made = Plan(trace_id=trace.id, planner="test", budget_bytes=GIB, swaps=swaps)
    return moved_bytes(trace, simulate(trace, where, made))


def test_what_goes_to_the_disk_by_way_of_the_host_counts_on_both_links() -> None:
    # two storages of 100 bytes, one to each tier; an op takes as long as ten copies
    trace = chain([100, 100, 100], ns=1000)
    swaps = [Swap(storage=s, tier=t, out_after_op=s, back_before_op=5 - s) for s, t in ((0, "disk"), (1, "host"))]  # pyright: ignore[reportArgumentType]

    assert of_plan(trace, through_the_host(), *swaps) == (
        MovedBytes("activation", "device", "host", 200, 200),
        MovedBytes("activation", "host", "disk", 100, 100),
    )


def test_kinds_are_told_apart_and_each_copy_counts() -> None:
    trace = used()
    small = plan(trace, machine(), 150, planner="on_demand", allow=("swap", "parameter"), min_size=1)
    line = simulate(trace, machine(), small)

    (moved,) = moved_bytes(trace, line)
    assert moved[:3] == ("parameter", "device", "disk")
    assert (moved.out_bytes, moved.back_bytes) == (line.swapped_out_bytes, line.swapped_back_bytes)
    assert moved.back_bytes >= 200


def test_the_plan_shows_a_row_for_each_kind_and_link_and_none_where_nothing_moves() -> None:
    trace = chain([2**20] * 3, ns=10**7)
    made = plan(trace, machine(), 2 * 2**20, planner="on_demand", min_size=1)
    subject = subject_of(trace, machine(), made, simulate(trace, machine(), made))

    text = text_of(plan_rendered("train.py", subject))
    assert "What a step moves" in text
    row = next(line.split() for line in text.splitlines() if line.startswith("activation"))
    assert row[1:4] == ["device", "and", "disk"]
    kept = plan(trace, machine(), GIB, planner="keep_all")
    nothing = subject_of(trace, machine(), kept, simulate(trace, machine(), kept))
    assert "What a step moves" not in text_of(plan_rendered("train.py", nothing))


def test_a_stall_is_no_copy() -> None:
    trace = chain([100] * 2)
    line = simulate(trace, machine())
    stall = Span(lane="compute", kind="stall", name="wait for data", start_ns=0, end_ns=1, op=0, storage=0)
    assert moved_bytes(trace, replace(line, spans=(stall,))) == ()
