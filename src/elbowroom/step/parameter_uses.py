"""Uses of parameters, from the ops of a captured trace: see `Part` in trace.py.

A run notes each operator that uses parameters (engine/parameters.py). A capture has all of them among its ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elbowroom.step.handed_gradients import with_handed
from elbowroom.trace import Part, Trace


def with_uses(trace: Trace, least_bytes: int) -> Trace:
    """Return the trace with each op that reads or writes parameters as a use of them.

    Ops of torch's clipping and gradient scaler on gradients become parts too: see handed_gradients.py.

    Args:
        trace: a trace whose ops name all that they read and write.
        least_bytes: smaller parameters are in no use.
    """
    uses = tuple(_uses(trace, max(1, least_bytes)))
    trace = with_handed(trace)
    return replace(trace, parts=tuple(sorted((*trace.parts, *uses), key=lambda part: (part.first_op, part.end_op))))


def _uses(trace: Trace, least_bytes: int) -> Iterator[Part]:
    movable = {
        index
        for index, storage in enumerate(trace.storages)
        if storage.category == "parameter" and storage.size_bytes >= least_bytes
    }
    for index, op in enumerate(trace.ops):
        used = tuple(dict.fromkeys(each for each in (*op.reads, *op.writes) if each in movable))
        if used:
            yield Part(first_op=index, end_op=index + 1, storages=used, kind="use")
