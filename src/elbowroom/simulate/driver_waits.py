"""driver: how long compute waits where the allocator turns to the driver in every step.

Where an allocator has to empty its cache, it waits until all that was handed to the device is done, copies included,
and then makes one call for each segment that it gives back; each segment that it takes is a call again. What a call
takes depends on driver, size and what else the process does; it is assumed here: CALL_NS for a segment, PAGE_NS for a
page of expandable segments.
Reference: release_cached_blocks in c10/cuda/CUDACachingAllocator.cpp. Ignored: that the device idles until the host has
handed it work again. Cost: linear in the calls and copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from elbowroom.allocator.settings import parse_settings
from elbowroom.simulate.lanes import Play
from elbowroom.simulate.reserved_curve import Driven
from elbowroom.step.last_step import LastStep

DRIVER = "wait for the driver"
"""Name of the stalls."""
CALL_NS = 1_000_000
"""cudaMalloc or cudaFree of a segment; 0.5 to 1.2 ms for 1 to 64 MB in the table of github.com/rtj1/cuda-mempool."""
PAGE_NS = 100_000
"""Mapping or unmapping one page of an expandable segment; an assumption."""


def delays_of(step: LastStep, driven: Sequence[Driven], done: Play, settings: str) -> dict[int, int]:
    """By op: ns that compute waits for the driver before it.

    Args:
        step: the last step.
        driven: where the allocator turns to the driver.
        done: the copies of the step.
        settings: of the allocator, as in PYTORCH_ALLOC_CONF.
    """
    allowed = parse_settings(settings)
    found: dict[int, int] = {}
    for each in driven:
        op = step.op_at(each.point)
        if allowed.expandable_segments:
            pages = (each.asked_bytes + each.freed_bytes) // allowed.large_segment_bytes + 1
            call_ns = pages * PAGE_NS
        else:
            call_ns = (1 + each.freed_segments) * CALL_NS
        arrives_ns = int(done.position_ns[op - step.first_op])
        until_ns = max((c.end_ns for c in done.copies if c.start_ns <= arrives_ns), default=0) if each.empties else 0
        found[op] = max(found.get(op, 0), until_ns - arrives_ns, 0) + call_ns
    return found


def delayed(step: LastStep, delays: Mapping[int, int]) -> LastStep:
    """A step some of whose ops take longer, by what compute waits before them."""
    if not delays:
        return step
    op_ns = np.diff(step.at_ns)
    for op, waits_ns in delays.items():
        op_ns[op - step.first_op] += waits_ns
    return replace(step, at_ns=np.concatenate([np.zeros(1, np.int64), np.cumsum(op_ns)]))
