"""Windows: when nothing of a step needs its optimizer states and gradients.

Each has one: the longest time between two ops in a row that read or write it, among them the one from its last use in
a step to its first use in the next, where it outlives the step. Where an optimizer's step is carried out in parts, a
part uses all its states from its first op to its last, and only what a part names may be away.
"""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.trace import Category, Step, Trace

STATES: tuple[Category, ...] = ("optimizer_state", "gradient")


class Window(NamedTuple):
    """A storage is idle from a position until it is used again; where that is not later, in the next step."""

    storage: int
    idle_from: int
    next_use: int


def state_windows(trace: Trace, step: Step, at_ns: list[int], stays: list[bool]) -> list[Window]:
    """The windows of a step, in the order in which they begin.

    Args:
        trace: the trace.
        step: its last step.
        at_ns: per position of the step, its nominal time.
        stays: per storage, whether it is there before the step and after it.
    """
    state = _movable(trace)
    uses = _uses_of_parts(trace, step)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    longest: dict[int, tuple[int, Window]] = {}
    for op in range(step.first_op, step.end_op):
        record = trace.ops[op]
        for storage in {storage for storage in (*record.reads, *record.writes, *uses.get(op, ())) if state[storage]}:
            if storage in last:
                _note(longest, at_ns[op - step.first_op] - at_ns[last[storage] + 1 - step.first_op], last, storage, op)
            first.setdefault(storage, op)
            last[storage] = op
    for storage in last:
        if stays[storage]:
            idle_ns = at_ns[-1] - at_ns[last[storage] + 1 - step.first_op] + at_ns[first[storage] - step.first_op]
            _note(longest, idle_ns, last, storage, first[storage])
    return sorted((window for _, window in longest.values()), key=lambda window: (window.idle_from, window.storage))


def _movable(trace: Trace) -> list[bool]:
    """Per storage, whether it may have a window."""
    named = {storage for part in trace.parts for storage in part.storages}
    return [
        known.category in STATES and known.size_bytes > 0 and (not trace.parts or storage in named)
        for storage, known in enumerate(trace.storages)
    ]


def _uses_of_parts(trace: Trace, step: Step) -> dict[int, tuple[int, ...]]:
    """By op of a part: the storages that the part uses."""
    inside = [part for part in trace.parts if step.first_op <= part.first_op and part.end_op <= step.end_op]
    return {op: part.storages for part in inside for op in range(part.first_op, part.end_op)}


def _note(
    longest: dict[int, tuple[int, Window]], idle_ns: int, last: dict[int, int], storage: int, next_use: int
) -> None:
    """Keep the window from the last use on if it is longer than the one known."""
    if idle_ns > longest.get(storage, (0,))[0]:
        longest[storage] = (idle_ns, Window(storage, last[storage] + 1, next_use))
