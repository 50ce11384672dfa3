"""Handed gradients: what torch's clipping and gradient scaler read while gradients may be away, in captured traces.

A run in which parameters may move hands such gradients out without their bytes (engine/handed_out.py). Each op on a
list of them runs on one part of the list after the other. What is away of a part comes back for it, and leaves again.
So the op needs one part on the device, and the time of the copies. A capture has the op whole: here it becomes a part
of kind "handed". Windows of gradients go on across it, and a storage of the size of one part is there during the op.

The size of the part counts whether the gradients are away or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from elbowroom.step.idle_windows import OF_ONE_OP
from elbowroom.trace import Event, Part, Storage, Trace
from elbowroom.units import NONE

PARTS = 16
"""A part has about 1/PARTS of the bytes of a list. More parts need less memory, and more calls."""
LISTS = ("aten._foreach_", "aten._amp_foreach_")
"""Ops that treat each tensor of their lists by itself."""


def borders(sizes: Sequence[int]) -> list[int]:
    """Return where parts of about 1/PARTS of all bytes begin, and the end of the last one."""
    most, held, found = sum(sizes) // PARTS, 0, [0]
    for i, size in enumerate(sizes):
        if held and held + size > most:
            found.append(i)
            held = 0
        held += size
    return [*found, len(sizes)]


def with_handed(trace: Trace) -> Trace:
    """Return the trace with each op that reads handed gradients as a part, with the room that it needs."""
    parts = () if any(part.kind == "handed" for part in trace.parts) else tuple(_handed(trace))
    if not parts:
        return trace
    rooms = [_room(trace, part) for part in parts]
    first = len(trace.storages)
    around = [
        (Event(part.first_op, first + n, sign * room.size_bytes), sign)
        for n, (part, room) in enumerate(zip(parts, rooms, strict=True))
        for sign in (1, -1)
    ]
    # at its op the room comes before all else, and is freed after it
    order = [(event.op, 0 if sign > 0 else 2, NONE, event) for event, sign in around]
    order += [(event.op, 1, index, event) for index, event in enumerate(trace.events)]
    order.sort(key=lambda entry: entry[:3])
    place_of = {index: place for place, (_, _, index, _) in enumerate(order)} | {len(trace.events): len(order)}
    own = sorted((*trace.parts, *parts), key=lambda part: (part.first_op, part.end_op))
    return replace(
        trace,
        storages=(*trace.storages, *rooms),
        events=tuple(event for *_, event in order),
        empties=tuple(place_of[index] for index in trace.empties),
        parts=tuple(own),
    )


def without_handed(trace: Trace) -> Trace:
    """Return the trace as of a run that hands no gradients out: those that clipping reads stay on the device."""
    read = {storage for part in _handed(trace) for storage in part.storages}
    if not read:
        return trace
    kept = [part for part in trace.parts if part.kind != "handed"]
    parts = [replace(part, storages=tuple(s for s in part.storages if s not in read)) for part in kept]
    return replace(trace, parts=tuple(part for part in parts if part.kind != "accumulation" or part.storages))


def _handed(trace: Trace) -> Iterator[Part]:
    """Yield the ops that read gradients between their accumulations and the parts of optimizers' steps."""
    ends = [part for part in trace.parts if part.kind == "accumulation"]
    covered = {op for part in trace.parts if part.kind not in OF_ONE_OP for op in range(part.first_op, part.end_op)}
    written, next_end = set[int](), 0
    for op, record in enumerate(trace.ops):
        while next_end < len(ends) and ends[next_end].end_op <= op:
            written.update(ends[next_end].storages)
            next_end += 1
        touched = tuple(s for s in dict.fromkeys((*record.reads, *record.writes)) if s in written)
        if op in covered:
            written.difference_update(touched)
        elif touched and record.phase != "backward":
            yield Part(first_op=op, end_op=op + 1, storages=touched, kind="handed")


def _room(trace: Trace, part: Part) -> Storage:
    """Return what one part of the list of an op takes, or all of what an op without such lists reads."""
    known = [trace.storages[storage] for storage in part.storages]
    sizes = [storage.size_bytes for storage in known]
    in_parts = trace.ops[part.first_op].name.startswith(LISTS) and len({each.dtype for each in known}) == 1
    largest = max(sum(sizes[a:b]) for a, b in pairwise(borders(sizes))) if in_parts else sum(sizes)
    return Storage(size_bytes=largest, category="temporary", dtype=known[0].dtype)
