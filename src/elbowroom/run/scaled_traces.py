"""Scaled traces: what a step of sizes that were never met will hold, from two recorded steps of other sizes.

Note: [Scaled traces]
Two recorded steps may run the same ops and save at the same positions. Then the sizes of a storage in both show how it
follows the inputs: not at all, as a length does, or as the square of a length. A step of other sizes is taken to do the
same. So its trace is that of a recorded step with other sizes. If inputs change by several ratios, the largest counts.
Storages that no op writes follow the one that grows most. So the scaled trace holds what the step will hold, or more.

A scaled trace is a guess, and only plans are made from it. The step that follows such a plan compares each save with
it, as a step of nearby sizes does (similar_shapes.py), and moves its own bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from elbowroom.capture.steady import PERSISTENT
from elbowroom.trace import Event, Op, Storage, Trace

SLACK = 1.02
"""Factor by which a save may exceed a power of the inputs' ratio: one more token, or a block that is rounded up."""
MOST_SCALED = 4
"""Largest ratio of inputs for which a trace is scaled, up or down."""
POWERS = (1, 2)
"""Powers of the inputs' ratio that a save may follow: of an attention map, the second."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Recorded step.

    Attributes:
        sizes: sizes of its inputs.
        trace: its trace.
    """

    sizes: tuple[int, ...]
    trace: Trace


def scaled(to: tuple[int, ...], near: Sized, other: Sized, min_size_bytes: int) -> Trace | None:
    """Return the trace of a step with inputs of these sizes; None if the two recorded steps do not show it.

    Args:
        to: sizes of its inputs.
        near: the recorded step whose trace is scaled.
        other: a recorded step of other sizes.
        min_size_bytes: smaller storages are not seen. None may grow or shrink past this size.
    """
    ratio = max(_ratios(near.sizes, to), default=1.0)
    powers = _powers(near, other)
    if powers is None or not 1 / MOST_SCALED <= ratio <= MOST_SCALED:
        return None
    trace = near.trace
    most = max(powers.values(), default=1)
    read = {number for op in trace.ops for number in op.reads}
    stays = {event.storage for event in trace.events if event.op < 0} - read

    def resized(number: int, storage: Storage) -> Storage:
        if storage.category in PERSISTENT or (number in stays and number not in powers):
            return storage
        power = powers.get(number, most if ratio > 1 else 1)
        return replace(storage, size_bytes=ceil(storage.size_bytes * ratio**power))

    storages = tuple(resized(number, storage) for number, storage in enumerate(trace.storages))
    if _passes(trace, storages, min_size_bytes):
        return None
    return replace(trace, storages=storages, events=tuple(_events(trace.events, storages)))


def _powers(near: Sized, other: Sized) -> dict[int, int] | None:
    """Return the power of the inputs' ratio that storages follow; None if the two steps differ in more than sizes."""
    if near.sizes == other.sizes or _shape(near.trace) != _shape(other.trace):
        return None
    ratios = _ratios(near.sizes, other.sizes)
    saves = {save.storage for save in near.trace.saves}
    found: dict[int, int] = {}
    for number, (mine, theirs) in _pairs(near.trace, other.trace):
        power = _power(theirs.size_bytes / max(1, mine.size_bytes), min(ratios), max(ratios))
        if number in saves and (power is None or mine.dtype != theirs.dtype):
            return None
        found[number] = max(found.get(number, 0), POWERS[-1] if power is None else power)
    return found


def _power(grown: float, least: float, most: float) -> int | None:
    """Return the power of ratios between these two that a size follows which has grown by this factor."""
    if grown == 1:
        return 0
    return next((p for p in POWERS if least**p / SLACK <= grown <= most**p * SLACK), None)


def _pairs(near: Trace, other: Trace) -> Iterator[tuple[int, tuple[Storage, Storage]]]:
    """Yield the number of each storage that ops or saves name, with the storage of the other step in its place."""
    mine = [save.storage for save in near.saves], [save.storage for save in other.saves]
    of_ops = ((a.writes + a.reads, b.writes + b.reads) for a, b in zip(_ops(near), _ops(other), strict=True))
    for these, those in (mine, *of_ops):
        for number, their_number in zip(these, those, strict=True):
            yield number, (near.storages[number], other.storages[their_number])


def _ops(trace: Trace) -> Sequence[Op]:
    """Return the ops up to the optimizer's first one."""
    end = next((n for n, op in enumerate(trace.ops) if op.phase == "optimizer"), len(trace.ops))
    return trace.ops[:end]


def _shape(trace: Trace) -> object:
    """Return what two steps that differ in sizes alone have in common: ops, and places of saves."""
    ops = [(op.name, len(op.writes), len(op.reads)) for op in _ops(trace)]
    return ops, [(save.saved_at, save.read_at) for save in trace.saves]


def _ratios(of: Sequence[int], to: Sequence[int]) -> list[float]:
    """Return by how much each size that changes does so; those that stay say nothing."""
    return [theirs / mine for mine, theirs in zip(of, to, strict=True) if mine and mine != theirs]


def _passes(trace: Trace, storages: Sequence[Storage], min_size_bytes: int) -> bool:
    """Whether a storage is seen on one side only: then the saves of the step would be others."""
    forward = {n for op in trace.ops if op.phase == "forward" for n in op.writes} | {s.storage for s in trace.saves}
    pairs = ((trace.storages[n].size_bytes, storages[n].size_bytes) for n in forward)
    return any((before < min_size_bytes) is not (after < min_size_bytes) for before, after in pairs)


def _events(events: Sequence[Event], storages: Sequence[Storage]) -> list[Event]:
    """Return the events with the new sizes."""
    return [
        event._replace(size_bytes=storages[event.storage].size_bytes * (1 if event.size_bytes > 0 else -1))
        for event in events
    ]
