"""Collectives of a recorded step: spans of their own, and waits where compute goes on only once one has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elbowroom as er
from elbowroom.capture.measured import Clock, with_exchanges
from elbowroom.capture.recording.profiler_stream import ExchangeSeen
from elbowroom.timeline import Span
from tests.torch.helpers import MIN_SIZE_BYTES

CLOCK = Clock(start_ns=1000, offset_ns=0)


def op(start_ns: int, end_ns: int) -> Span:
    return Span(lane="compute", kind="op", name="aten.mm", start_ns=start_ns, end_ns=end_ns, op=0)


def seen(start_ns: int, end_ns: int) -> ExchangeSeen:
    return ExchangeSeen("gloo:all_reduce", 64, 1000 + start_ns, 1000 + end_ns)


@pytest.mark.parametrize(
    ("exchange", "waits"),
    [
        ((50, 180), [(100, 180)]),  # made beside the first op; the second one begins 20 ns after it
        ((10, 90), []),  # over before compute stops
        ((150, 450), []),  # over beside the third op
        ((250, 390), [(300, 390)]),  # waited for after the second op
    ],
)
def test_compute_waits_where_it_goes_on_only_after_a_collective(
    exchange: tuple[int, int], waits: list[tuple[int, int]]
) -> None:
    found = with_exchanges((op(0, 100), op(200, 300), op(400, 500)), CLOCK, [seen(*exchange)])

    assert [(span.start_ns, span.end_ns) for span in found if span.kind == "wait"] == waits
    (lane,) = [span for span in found if span.lane == "collective"]
    assert (lane.kind, lane.name, lane.start_ns, lane.end_ns) == ("exchange", "gloo:all_reduce", *exchange)
    assert lane.size_bytes == 64


def test_a_copy_that_compute_stalls_for_is_no_wait_for_a_collective() -> None:
    stall = Span(lane="compute", kind="stall", name="stall", start_ns=100, end_ns=150, op=1, storage=None)

    found = with_exchanges((op(0, 100), stall, op(200, 300)), CLOCK, [seen(50, 140), seen(60, 170)])

    assert [(span.start_ns, span.end_ns) for span in found if span.kind == "wait"] == [(150, 170)]


def test_a_collective_of_the_step_before_is_left_out() -> None:
    assert with_exchanges((op(0, 100),), CLOCK, [seen(-90, -10)]) == (op(0, 100),)


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo")
def test_a_measured_step_has_its_reductions_with_their_bytes(tmp_path: Path) -> None:
    # given three layers of 64 x 64 floats without a bias: buckets of 16 KiB, the first of which DDP makes smaller
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        layers = (torch.nn.Linear(64, 64, bias=False) for _ in range(3))
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=64 * 64 * 4 / 2**20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        # when
        with er.within("1GiB", min_size=MIN_SIZE_BYTES, measure=True) as room:
            for _ in range(6):
                optimizer.zero_grad()
                model(torch.ones(8, 64)).sum().backward()
                optimizer.step()
    finally:
        dist.destroy_process_group()

    # then all gradients are reduced, each once
    assert room.measured is not None
    exchanges = [span for span in room.measured.spans if span.kind == "exchange"]
    reduced = [span.size_bytes for span in exchanges if span.name == "gloo:all_reduce"]
    assert sum(reduced) == 3 * 64 * 64 * 4
    assert all(span.start_ns < span.end_ns for span in exchanges)
