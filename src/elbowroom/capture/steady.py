"""Steady: make a trace of the first step into one of a step in the middle of a training.

The first step makes the optimizer's state and the first gradients. In every later step they are there before it begins.
The first step also leaves other storages behind: its loss, its output, its batch. The next step has them until it
replaces them. So each is counted a second time, as a `temporary` that was there before.

A step under a plan is steady. But for storages that it keeps, it does not show when only autograd holds them. The
observed step showed that. So did a capture of the script on a virtual GPU, which shows it for each op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from elbowroom.step.workspaces import without_storages
from elbowroom.trace import Category, Event, Op, Save, Step, Storage, Trace

CALLED_BY = {"aten._index_put_impl_": "aten.index_put_"}
"""Op of a recording -> the op that calls it, which a capture has in its place."""
PERSISTENT: tuple[Category, ...] = ("parameter", "buffer", "gradient", "optimizer_state")


def steady(trace: Trace) -> Trace:
    """Return a trace of a first step as one from the middle of a training; if in doubt, it holds more memory."""
    made = {event.storage: event.op for event in trace.events if event.size_bytes > 0}
    freed = {event.storage for event in trace.events if event.size_bytes < 0}
    left = [storage for storage, op in made.items() if op >= 0 and storage not in freed]
    lasting = {storage for storage in left if trace.storages[storage].category in PERSISTENT}
    leftovers = tuple(
        Storage(size_bytes=trace.storages[storage].size_bytes, category="temporary")
        for storage in left
        if storage not in lasting
    )
    first = len(trace.storages)
    before = [Event(-1, storage, trace.storages[storage].size_bytes) for storage in left if storage in lasting]
    before += [Event(-1, first + index, extra.size_bytes) for index, extra in enumerate(leftovers)]
    kept = [event for event in trace.events if not (event.storage in lasting and event.size_bytes > 0)]
    return replace(
        trace,
        storages=trace.storages + leftovers,
        events=tuple(sorted((*kept, *before), key=lambda event: event.op)),
    )


def with_inputs(trace: Trace) -> Trace:
    """Return the trace with storages that a step makes before its model begins as inputs, as in a run.

    In a run, a step begins at the first call of a module or the first storage that autograd saves. Storages that
    exist by then are the batch, however it was made.
    """
    inputs: set[int] = set()
    for step in trace.steps:
        begin = _begin(trace, step, (op for op in range(*step) if trace.ops[op].module))
        before = [event for event in trace.events if step.first_op <= event.op < begin]
        gone = {event.storage for event in before if event.size_bytes < 0}
        inputs |= {event.storage for event in before if event.size_bytes > 0} - gone
    made = [n in inputs and known.category in ("activation", "temporary") for n, known in enumerate(trace.storages)]
    storages = zip(trace.storages, made, strict=True)
    return replace(trace, storages=tuple(replace(s, category="input") if is_input else s for s, is_input in storages))


def _begin(trace: Trace, step: Step, calls: Iterable[int]) -> int:
    """Return the first op of a step's model: at the first of these calls, or the first storage that is saved."""
    called = (op for op in calls if step.first_op <= op < step.end_op)
    saves = (save.saved_at for save in trace.saves if step.first_op <= save.saved_at < step.end_op)
    return min(next(called, step.end_op), next(saves, step.end_op))


def without_gaps(trace: Trace, forwards: Sequence[int]) -> Trace:
    """Return the trace without what happens between steps, such as an evaluation or the making of a batch.

    A run does not plan it, and begins a step after it. So what is made and freed there is left out. What is freed there
    is freed as the step before ends, and what is made there as the forward begins.

    Args:
        trace: the trace.
        forwards: the number of ops before each call of an outermost module that records gradients.
    """
    ops, events, spared = list(trace.ops), list[Event](), set[int]()
    saved = {save.storage for save in trace.saves}
    of_op: dict[int, range] = {}
    for gap in _gaps(trace, forwards):
        of_op.update(dict.fromkeys(gap, gap))
        ops[gap.start : gap.stop] = [replace(op, reads=(), writes=()) for op in ops[gap.start : gap.stop]]
    for gap, each in groupby(trace.events, lambda event: of_op.get(event.op)):
        found = list(each)
        if gap is None:
            events += found
            continue
        made = {event.storage for event in found if event.size_bytes > 0}
        spared |= {event.storage for event in found if event.size_bytes < 0} & made - saved
        events += [event._replace(op=gap.start) for event in found if event.storage not in made]
        events += [event._replace(op=gap.stop - 1) for event in found if event.storage in made]
    return without_storages(replace(trace, ops=tuple(ops), events=tuple(events)), spared)


def _gaps(trace: Trace, forwards: Sequence[int]) -> Iterator[range]:
    """Yield the ops from the end of each step to the forward of the next one."""
    for step in trace.steps:
        begin = _begin(trace, step, forwards)
        if step.first_op < begin < step.end_op:
            yield range(step.first_op, begin)


def with_idle_of(trace: Trace, observed: Trace) -> Trace | None:
    """Return the trace of a step under a plan, with `idle_from` of the observed step; None if the two differ.

    A storage that was kept does not show from which position on only autograd held it. The observed step swapped
    everything and shows it, but only to the next tick. The earlier position of both steps is taken. The two match if
    they ran the same ops up to the last read back.
    """
    last_read = max((position for save in observed.saves for position in save.read_at), default=0)
    same_ops = [op.name for op in trace.ops[:last_read]] == [op.name for op in observed.ops[:last_read]]
    if not same_ops or [_places(save) for save in trace.saves] != [_places(save) for save in observed.saves]:
        return None
    pairs = zip(trace.saves, observed.saves, strict=True)
    return replace(trace, saves=tuple(replace(save, idle_from=_idle_from(save, seen)) for save, seen in pairs))


def as_run(trace: Trace, min_size_bytes: int) -> Trace:
    """Return a captured trace as a run sees its steps: with the saves of storages from a least size on.

    What is saved right where the last step ends belongs to a step after it. What is freed there, and was not where the
    step before ended, is freed as the script ends: a step after it would find that.
    """
    end_op = trace.steps[-1].end_op
    large = (save for save in trace.saves if trace.storages[save.storage].size_bytes >= min_size_bytes)
    saves = tuple(save for save in large if save.saved_at < end_op)
    if len(trace.steps) < 2:
        return replace(trace, saves=saves)
    usual = Counter(_freed(trace, event) for event in trace.events if event.op == trace.steps[-2].end_op - 1)
    events: list[Event] = []
    for event in trace.events:
        if event.size_bytes < 0 and event.op >= end_op - 1:
            usual[_freed(trace, event)] -= 1
            if usual[_freed(trace, event)] < 0:
                continue
        events.append(event)
    return replace(trace, saves=saves, events=tuple(events))


def _freed(trace: Trace, event: Event) -> tuple[int, Category]:
    return event.size_bytes, trace.storages[event.storage].category


def with_idle_of_capture(trace: Trace, captured: Trace) -> Trace | None:
    """Return the trace of a step under a plan, with `idle_from` of a capture; None if the two differ.

    Each has ops that the other leaves out, such as views. So the ops of the recording that read or write a storage are
    found among those of the capture's last step, one after the other. They have to be there up to the last read back.

    Args:
        trace: the recorded step.
        captured: the capture, with the saves that a run notices.
    """
    first_op, end_op = captured.steps[-1]
    theirs = [save for save in captured.saves if first_op <= save.saved_at <= end_op]
    if [_what(trace, save) for save in trace.saves] != [_what(captured, save) for save in theirs]:
        return None
    matched = _matched(trace.ops, captured.ops[first_op:end_op])
    last_read = max((position for save in trace.saves for position in save.read_at), default=0)
    if any(map(_touches, trace.ops[matched[-1] : last_read])):
        return None
    saves: list[Save] = []
    for own, other in zip(trace.saves, theirs, strict=True):
        shown = [] if own.idle_from is None else [own.idle_from]
        if other.idle_from is not None:
            shown.append(max(own.saved_at, matched[min(other.idle_from, end_op) - first_op]))
        saves.append(replace(own, idle_from=min(shown, default=None)))
    return replace(trace, saves=tuple(saves))


def _matched(ops: Sequence[Op], captured: Iterable[Op]) -> list[int]:
    """Return, for the number of captured ops that were run, how many ops of a recording were run by then."""
    matched, names = [0], [CALLED_BY.get(op.name, op.name) for op in ops]
    for op in captured:
        at = matched[-1]
        while at < len(ops) and names[at] != op.name and not _touches(ops[at]):
            at += 1
        found = at < len(ops) and names[at] == op.name
        matched.append(at + 1 if found else matched[-1])
    return matched


def _touches(op: Op) -> bool:
    return bool(op.reads or op.writes)


def _what(trace: Trace, save: Save) -> tuple[int, str]:
    """Return the size and the type by which a run knows a saved storage."""
    storage = trace.storages[save.storage]
    return storage.size_bytes, storage.dtype


def _idle_from(save: Save, observed: Save) -> int | None:
    """Return the earlier of the positions from which two steps show that only autograd holds a storage."""
    shown = [each.idle_from for each in (save, observed) if each.idle_from is not None]
    return min(shown, default=None)


def _places(save: Save) -> tuple[int, tuple[int, ...]]:
    return save.saved_at, save.read_at
