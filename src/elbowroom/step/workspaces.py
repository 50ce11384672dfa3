"""Workspaces that a training can do without: those of convolutions, whose size cuDNN decides, and bounds from 0 on."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from elbowroom.trace import Trace


def conv_workspaces(trace: Trace) -> frozenset[int]:
    """Return the workspaces that an op allocates and frees itself, and of which it may need less or nothing.

    Those of convolutions do not make a training fail: if there is no room, torch takes an algorithm with less
    (Conv_v8.cpp). What a capture of the CPU's kernels names is the most that they may take.
    """
    made: dict[int, int] = {}
    found: set[int] = set()
    at_most = {each.storage for each in trace.workspaces if not each.least_bytes}
    for op, storage, size_bytes in trace.events:
        if op < 0 or trace.storages[storage].category != "workspace":
            continue
        if storage not in at_most and "conv" not in trace.ops[op].name:
            continue
        if size_bytes > 0:
            made[storage] = op
        elif made.get(storage) == op:
            found.add(storage)
    return frozenset(found)


def without_workspaces(trace: Trace) -> Trace:
    """Return the trace without such workspaces."""
    spared = conv_workspaces(trace)
    if not spared:
        return trace
    kept = [place for place, event in enumerate(trace.events) if event.storage not in spared]
    return replace(
        trace,
        events=tuple(trace.events[place] for place in kept),
        empties=tuple(sorted({bisect_left(kept, place) for place in trace.empties})),
        workspaces=tuple(each for each in trace.workspaces if each.storage not in spared),
    )
