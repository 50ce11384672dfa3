"""Driver waits: how long compute waits when the allocator calls the driver in every step.

An allocator that empties its cache first waits for all work of the device, copies included. Then it makes one call for
each segment that it gives back, and one for each segment that it takes. The time of a call depends on the driver, the
size and the rest of the process. It is assumed here: CALL_NS for a segment, PAGE_NS for a page of expandable segments.
Reference: release_cached_blocks in c10/cuda/CUDACachingAllocator.cpp. Ignored: the device idles until the host hands it
work again. Cost: linear in calls times copies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from elbowroom.allocator.settings import parse_settings
from elbowroom.simulate.lanes import Play
from elbowroom.simulate.reserved_curve import Driven
from elbowroom.step.last_step import LastStep

DRIVER = "wait for the driver"
"""Name of the stalls in a timeline."""
CALL_NS = 1_000_000
"""Time of cudaMalloc or cudaFree of a segment; the table of github.com/rtj1/cuda-mempool has 0.5 to 1.2 ms for 1 to 64
MB."""
PAGE_NS = 100_000
"""Time to map or unmap one page of an expandable segment; an assumption."""


def delays_of(step: LastStep, driven: Sequence[Driven], done: Play, settings: str) -> dict[int, int]:
    """Return by op how many ns compute waits for the driver before it.

    Args:
        step: the last step.
        driven: where the allocator calls the driver.
        done: the copies of the step.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
    """
    allowed = parse_settings(settings)
    found: dict[int, int] = {}
    waited_at, waited_ns = list[int](), [0]
    for each in driven:
        op = step.op_at(each.point)
        if allowed.expandable_segments:
            pages = (each.asked_bytes + each.freed_bytes) // allowed.large_segment_bytes + 1
            call_ns = pages * PAGE_NS
        else:
            call_ns = (1 + each.freed_segments) * CALL_NS
        arrives_ns = int(done.position_ns[op - step.first_op])
        waits_ns = call_ns
        if each.empties:  # a copy goes on while compute waits, so the waits since its start have brought it on
            ends_ns = (
                copy.end_ns - (waited_ns[-1] - waited_ns[bisect_left(waited_at, copy.start_ns)])
                for copy in done.copies
                if copy.start_ns <= arrives_ns
            )
            waits_ns += max(0, max(ends_ns, default=0) - arrives_ns)
        waited_at.append(arrives_ns)
        waited_ns.append(waited_ns[-1] + waits_ns)
        found[op] = found.get(op, 0) + waits_ns
    return found


def delayed(step: LastStep, delays: Mapping[int, int]) -> LastStep:
    """Return the step with the time that compute waits before an op added to that op."""
    if not delays:
        return step
    op_ns = np.diff(step.at_ns)
    for op, waits_ns in delays.items():
        op_ns[op - step.first_op] += waits_ns
    return replace(step, at_ns=np.concatenate([np.zeros(1, np.int64), np.cumsum(op_ns)]))
