"""Workspaces that a training can do without: those of convolutions, whose size cuDNN decides, and bounds from 0 on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import replace

from elbowroom.trace import Op, Trace


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
    return without_storages(trace, conv_workspaces(trace))


def without_storages(trace: Trace, spared: Collection[int]) -> Trace:
    """Return the trace without some storages that autograd does not save: no op reads or writes them either."""
    if not spared:
        return trace
    kept = [place for place, event in enumerate(trace.events) if event.storage not in spared]
    return replace(
        trace,
        ops=tuple(_without(op, spared) for op in trace.ops),
        events=tuple(trace.events[place] for place in kept),
        empties=tuple(sorted({bisect_left(kept, place) for place in trace.empties})),
        workspaces=tuple(each for each in trace.workspaces if each.storage not in spared),
    )


def _without(op: Op, spared: Collection[int]) -> Op:
    if not any(each in spared for each in (*op.reads, *op.writes)):
        return op
    reads, writes = (tuple(each for each in given if each not in spared) for given in (op.reads, op.writes))
    return replace(op, reads=reads, writes=writes)
