"""Windows: when no op of a step uses its optimizer states, gradients and parameters.

Each state has at most one window: the longest time between two successive ops that read or write it. If it
outlives the step, the time from its last use to its first in the next step counts too. An optimizer's step may be
carried out in parts. Then a part uses all its states from its first op to its last. Only these states may be away.
A gradient has several: from the end of each accumulation to its next use. That use must be another accumulation or a
part. The runtime gets control at both, and no other code has asked for the gradient, but for what hands it out in
parts. A gradient that outlives the step, such as that of a net which another optimizer steps, has one from its last
accumulation to its first in the next step. It has one more after its last part: released_gradients.py.
A parameter has a window between any two of its uses, but for those in the same part of an optimizer's step. The runtime
must get control at each op that reads or writes it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from elbowroom.trace import Category, Part, Step, Trace
from elbowroom.units import NONE

OF_ONE_OP = ("use", "handed")
"""Kinds of parts that are one op, in which a run does not get control for states and gradients."""
STATES: tuple[Category, ...] = ("optimizer_state", "gradient")


class Window(NamedTuple):
    """A storage is idle from a position until its next use; a next use that is not later is in the next step.

    `freed` is the point at which a storage that is not used again is freed, directly before the position `next_use`;
    None if it is used again.
    """

    storage: int
    idle_from: int
    next_use: int
    freed: int | None = None


def state_windows(trace: Trace, step: Step, at_ns: list[int], stays: list[bool]) -> list[Window]:
    """Return the windows of a step, in the order in which they begin.

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
    by_parts = (*_of_gradients(trace, step, stays), *_of_parameters(trace, step, stays))
    found = [*(window for _, window in longest.values()), *by_parts]
    return sorted(found, key=lambda window: (window.idle_from, window.storage))


def parts_of(trace: Trace, step: Step) -> tuple[Part, ...]:
    """Return the parts of optimizers' steps in a step, the accumulations, and the uses of parameters."""
    return tuple(p for p in trace.parts if step.first_op <= p.first_op and p.end_op <= step.end_op)


def _of_gradients(trace: Trace, step: Step, stays: list[bool]) -> Iterator[Window]:
    """Yield the windows from each accumulation to its gradient's next use, if the runtime gets control there."""
    inside = [part for part in parts_of(trace, step) if part.kind not in OF_ONE_OP]
    handed = {op.first_op for op in parts_of(trace, step) if op.kind == "handed"}
    written: dict[int, list[Part]] = {}
    for part in inside:
        for storage in part.storages:
            # a part of the optimizer's step may come before another backward pass that adds to the gradient
            if part.kind == "accumulation" or (storage in written and trace.storages[storage].category == "gradient"):
                written.setdefault(storage, []).append(part)
    begin_of = {op: part.first_op for part in inside for op in range(part.first_op, part.end_op)}
    used = ops_using(trace, step, set(written))
    for storage, parts in written.items():
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            uses = [op for op in used[storage][bisect_left(used[storage], part.end_op) :] if op not in handed]
            op = next((op for op in uses if following is None or op < following.first_op), None)
            next_use = begin_of.get(op) if op is not None else following.first_op if following is not None else None
            if next_use is not None and next_use > part.end_op:
                yield Window(storage, part.end_op, next_use)
        after = bisect_left(used[storage], parts[-1].end_op)
        if stays[storage] and after == len(used[storage]) and used[storage][:1] >= [parts[0].first_op]:
            yield Window(storage, parts[-1].end_op, parts[0].first_op)


def _of_parameters(trace: Trace, step: Step, stays: list[bool]) -> Iterator[Window]:
    """Yield the windows between the uses of each parameter, and from its last one to the first of the next step."""
    used: dict[int, list[Part]] = {}
    part_of = dict[int, int]()
    for part in parts_of(trace, step):
        for storage in part.storages if part.kind == "use" else ():
            used.setdefault(storage, []).append(part)
        if part.kind == "optimizer":
            part_of.update(dict.fromkeys(range(part.first_op, part.end_op), part.first_op))
    by_ops = ops_using(trace, step, set(used))
    for storage, uses in used.items():
        seen = {op for part in uses for op in range(part.first_op, part.end_op)}
        if not stays[storage] or not seen.issuperset(by_ops[storage]):
            continue
        for part, following in zip(uses, [*uses[1:], uses[0]], strict=True):
            own, next_one = part_of.get(part.first_op, NONE), part_of.get(following.first_op, NONE)
            if following is uses[0] or (part.end_op < following.first_op and (own != next_one or own == NONE)):
                yield Window(storage, part.end_op, following.first_op)


def ops_using(trace: Trace, step: Step, storages: set[int]) -> dict[int, list[int]]:
    """Return the ops that read or write each of some storages, ascending."""
    found: dict[int, list[int]] = {storage: [] for storage in storages}
    for op in range(step.first_op, step.end_op):
        for storage in storages.intersection((*trace.ops[op].reads, *trace.ops[op].writes)):
            found[storage].append(op)
    return found


def _movable(trace: Trace) -> list[bool]:
    """Return per storage whether it may have a window between any two ops that use it."""
    named = {storage for part in trace.parts if part.kind == "optimizer" for storage in part.storages}
    return [
        known.size_bytes > 0
        and ((storage in named and known.category == "optimizer_state") if trace.parts else known.category in STATES)
        for storage, known in enumerate(trace.storages)
    ]


def _uses_of_parts(trace: Trace, step: Step) -> dict[int, tuple[int, ...]]:
    """Return by op of a part the storages that the part uses."""
    parts = (part for part in parts_of(trace, step) if part.kind not in OF_ONE_OP)
    return {op: part.storages for part in parts for op in range(part.first_op, part.end_op)}


def _note(
    longest: dict[int, tuple[int, Window]], idle_ns: int, last: dict[int, int], storage: int, next_use: int
) -> None:
    """Keep the window that begins after the last use if it is longer than the one known."""
    if idle_ns > longest.get(storage, (0,))[0]:
        longest[storage] = (idle_ns, Window(storage, last[storage] + 1, next_use))
