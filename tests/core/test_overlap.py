"""Overlap: collectives run beside compute on their own lanes, and compute waits for what they bring."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from elbowroom.answers.exchange_memory import exchange_memory
from elbowroom.answers.exchanges import StepTimes, step_times
from elbowroom.errors import InvalidRecord
from elbowroom.hardware.interconnects import Communicator, Interconnect
from elbowroom.plan import Plan, Swap
from elbowroom.simulate.simulate import simulate
from elbowroom.step.exchange_times import with_exchange_times
from elbowroom.step.last_step import last_step
from elbowroom.trace import Exchange, OpStream, Trace
from tests.core.build import Build, machine

NODE, WIDE = Communicator(8, 8, 8), Communicator(16, 8, 8)


class Job(Build):
    """A build whose collectives and streams are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []
        self.on: list[OpStream] = []

    def exchange(self, name: str, ns: int, *used: int, group: int = 0, stream: int = 0) -> None:
        """Run a collective that reads and writes storages."""
        self.exchanges.append(Exchange(self.position, group, 64))
        self.beside(name, ns, stream, *used)

    def beside(self, name: str, ns: int, stream: int, *used: int) -> None:
        """Run an op on a stream."""
        if stream:
            self.on.append(OpStream(self.position, stream))
        self.op(name, ns, reads=used, writes=used)

    def of_job(self) -> Trace:
        made = self.trace()
        return replace(
            made,
            device="cuda:0",
            communicators=(NODE, WIDE),
            exchanges=tuple(self.exchanges),
            op_streams=tuple(self.on),
        )


def reduced(ns: int, wait: bool = True) -> Trace:
    """Two gradients are made in 100 ns each; the first is reduced beside the second; then 10 ns of an optimizer."""
    job = Job()
    one = cast("int", job.op("aten.mm", 100, make=8))
    job.exchange("c10d.allreduce", ns, one)
    job.op("aten.mm", 100, make=8)
    job.op("aten.add_", 10, reads=(one,) if wait else ())
    return job.of_job()


def test_a_collective_that_ends_before_it_is_needed_costs_nothing() -> None:
    line = simulate(reduced(90), machine())

    assert (line.step_ns, line.wait_ns, line.exchange_ns) == (210, 0, 90)
    (exchange,) = [span for span in line.spans if span.kind == "exchange"]
    assert (exchange.lane, exchange.start_ns, exchange.end_ns, exchange.size_bytes) == ("collective", 100, 190, 64)


def test_compute_waits_for_a_collective_that_takes_longer() -> None:
    line = simulate(reduced(130), machine())

    # made at 100, reduced by 230, where compute is there at 200
    assert (line.step_ns, line.wait_ns) == (240, 30)
    (wait,) = [span for span in line.spans if span.kind == "wait"]
    assert (wait.start_ns, wait.end_ns, wait.op) == (200, 230, 3)
    assert line.busy_ns == 210
    assert line.stall_ns == 0, "stalls are waits for copies"
    assert step_times(reduced(130)) == StepTimes(step_ns=240, wait_ns=30)


def test_a_step_ends_when_its_last_collective_does() -> None:
    line = simulate(reduced(500, wait=False), machine())

    assert (line.step_ns, line.wait_ns) == (600, 390)


def test_what_another_stream_called_need_not_wait_for_compute() -> None:
    # weights of the next layer are gathered from the start, beside 100 ns of this one
    job = Job()
    weight = job.storage(8, "parameter")
    job.op("aten.mm", 100, make=8)
    job.beside("aten.copy_", 20, 7, weight)
    job.exchange("c10d._allgather_base", 60, weight, stream=7)
    job.op("aten.mm", 100, reads=(weight,))

    line = simulate(job.of_job(), machine())

    assert (line.step_ns, line.wait_ns) == (200, 0)
    assert [(s.start_ns, s.end_ns) for s in line.spans if s.kind == "exchange"] == [(20, 80)]


def test_collectives_of_one_kind_of_link_follow_each_other_and_others_go_beside() -> None:
    job = Job()
    one, two, three = (job.storage(8, "gradient") for _ in range(3))
    job.exchange("c10d.allreduce", 100, one)
    job.exchange("c10d.allreduce", 100, two)
    job.exchange("c10d.allreduce", 150, three, group=1)
    job.op("aten.mm", 10, reads=(one, two, three))

    line = simulate(job.of_job(), machine())

    found = [(s.lane, s.start_ns, s.end_ns) for s in line.spans if s.kind == "exchange"]
    assert sorted(found) == [("collective", 0, 100), ("collective", 100, 200), ("network", 0, 150)]
    assert line.step_ns == 210


def test_what_a_collective_reads_is_not_written_before_it_ends() -> None:
    job = Job()
    sent = job.storage(8, "gradient")
    job.exchange("c10d.send", 100, sent)
    job.op("aten.zero_", 10, writes=(sent,))

    assert simulate(job.of_job(), machine()).step_ns == 110


def test_a_recompute_does_not_wait_again_for_the_collective_before_its_op() -> None:
    found = last_step(reduced(130))

    assert (found.op_ns(3), found.own_ns(3), found.time_of([3, 2])) == (40, 10, 110)


def test_collectives_are_later_where_swaps_make_compute_late() -> None:
    job = Job()
    saved = job.save(cast("int", job.op("aten.relu", 10, make=5)))
    job.op("aten.mm", 10)
    job.read(saved)
    gradient = cast("int", job.op("aten.mm", 10, make=8))
    job.exchange("c10d.allreduce", 40, gradient)
    job.op("aten.add_", 10, reads=(gradient,))
    trace = job.of_job()
    plan = Plan(
        trace_id=trace.id,
        planner="swap_all",
        budget_bytes=10**6,
        swaps=(Swap(storage=saved, tier="disk", out_after_op=0, back_before_op=2),),
    )

    kept, line = simulate(trace, machine()), simulate(trace, machine(), plan)

    late_ns = line.step_ns - kept.step_ns
    assert late_ns == line.stall_ns > 0
    starts = [next(s.start_ns for s in each.spans if s.kind == "exchange") for each in (kept, line)]
    assert starts[1] - starts[0] == late_ns


def test_a_trace_gets_the_times_of_an_interconnect_and_of_another_one() -> None:
    wires, slow = Interconnect.of("nvlink-4,8xndr"), Interconnect.of("pcie-3,ethernet-10")
    fast_ns, slow_ns = (with_exchange_times(reduced(1), each).ops[1].duration_ns for each in (wires, slow))

    assert 1 < fast_ns < slow_ns
    assert with_exchange_times(reduced(1), wires).ops[0].duration_ns == 100


def test_nccl_takes_memory_for_each_group_that_is_used() -> None:
    job = Job()
    one, two = job.storage(8, "gradient"), job.storage(8, "gradient")
    job.exchange("c10d.allreduce", 1, one)
    job.exchange("c10d.allreduce", 1, two)
    job.exchange("c10d.alltoall_base", 1, two, group=1)
    wires, slow = Interconnect.of("nvlink-4,8xndr"), Interconnect.of("pcie-3,ethernet-10")

    # 544 MB and 2 GB each, and 3.28 GB for the messages of the second; PCIe: 2 and 32 buffers of 10 MiB each
    assert exchange_memory(job.of_job(), wires) == (2, 1_088_000_000, 7_280_000_000)
    assert exchange_memory(job.of_job(), slow) == (2, 40 * 2**20, 640 * 2**20 + 3_280_000_000)
    assert exchange_memory(replace(job.of_job(), exchanges=()), wires) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exchanges": (Exchange(9, 0, 1),)}, r"Trace.exchanges\[0\].op"),
        ({"exchanges": (Exchange(1, 2, 1),)}, r"Trace.exchanges\[0\].communicator"),
        ({"exchanges": (Exchange(1, 0, 1), Exchange(1, 0, 1))}, r"Trace.exchanges\[1\].op"),
        ({"communicators": (Communicator(8, 9, 9), WIDE)}, r"Trace.communicators\[0\].local_ranks"),
        ({"communicators": (Communicator(8, 8, 4), WIDE)}, r"Trace.communicators\[0\].node_ranks"),
        ({"op_streams": (OpStream(1, 0),)}, r"Trace.op_streams\[0\].stream"),
    ],
)
def test_a_trace_whose_collectives_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        replace(reduced(1), **change)  # pyright: ignore[reportArgumentType]
