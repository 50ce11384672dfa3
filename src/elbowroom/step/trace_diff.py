"""Trace difference: where two traces first differ, in words.

Computes: the first difference, in this order: device and version of torch; the ops of the last step, with what they
read and write; the storages; what autograd saves; the order of allocations and frees. Times are not compared, as no
plan depends on the exact ones. Ignores: everything after the first difference. Cost: linear in the traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elbowroom.trace import Op, Save, Step, Storage, Trace
from elbowroom.units import format_bytes


def first_difference(one: Trace, other: Trace) -> str | None:
    """Say where a trace first differs from another, as a clause about `one`; None if only times differ."""
    return next(_differences(one, other), None)


def _differences(one: Trace, other: Trace) -> Iterator[str]:
    if one.device != other.device:
        yield f"it was recorded on {one.device}, not {other.device}"
    if one.torch_version != other.torch_version:
        yield f"it was recorded with {one.made_with}, not {other.torch_version}"
    here, there = one.steps[-1], other.steps[-1]
    yield from _ops(one.ops[here.first_op : here.end_op], other.ops[there.first_op : there.end_op])
    yield from _storages(one.storages, other.storages)
    yield from _saves(_saved(one, here), _saved(other, there), here.first_op, there.first_op)
    yield from _counts("allocations and frees", len(one.events), len(other.events))
    for index, (mine, theirs) in enumerate(zip(one.events, other.events, strict=True)):
        if mine != theirs:
            yield f"its allocation or free {index} is of storage {mine.storage}, not {theirs.storage}"


def _counts(what: str, mine: int, theirs: int) -> Iterator[str]:
    if mine != theirs:
        yield f"it has {mine} {what}, not {theirs}"


def _ops(mine: Sequence[Op], theirs: Sequence[Op]) -> Iterator[str]:
    """Compare the last steps op by op; if one step goes on where the other ends, they differ at its end."""
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if (a.name, a.module) != (b.name, b.module):
            yield f"op {index} of its step is {_called(a)}, not {_called(b)}"
        if (a.reads, a.writes) != (b.reads, b.writes):
            yield (
                f"op {index} of its step, {_called(a)}, reads storages {a.reads} and writes {a.writes}, not "
                f"{b.reads} and {b.writes}"
            )
    yield from _counts("ops in its step", len(mine), len(theirs))


def _called(op: Op) -> str:
    return f"{op.name} in {op.module!r} ({op.phase})" if op.module else f"{op.name} ({op.phase})"


def _storage(storage: Storage) -> str:
    return f"{format_bytes(storage.size_bytes)} of {storage.dtype or 'bytes'} ({storage.category})"


def _storages(mine: Sequence[Storage], theirs: Sequence[Storage]) -> Iterator[str]:
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            yield f"its storage {index} is {_storage(a)}, not {_storage(b)}"
    yield from _counts("storages", len(mine), len(theirs))


def _saved(trace: Trace, step: Step) -> list[Save]:
    return [save for save in trace.saves if step.first_op <= save.saved_at <= step.end_op]


def _saves(mine: Sequence[Save], theirs: Sequence[Save], first: int, other_first: int) -> Iterator[str]:
    for index, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if _placed(a, first) != _placed(b, other_first):
            yield (
                f"saved storage {index} of its step is {a.storage}, saved at {a.saved_at - first} and idle from "
                f"{a.idle_from and a.idle_from - first}, not {b.storage}, saved at {b.saved_at - other_first} and idle "
                f"from {b.idle_from and b.idle_from - other_first}"
            )
    yield from _counts("saved storages in its step", len(mine), len(theirs))


def _placed(save: Save, first: int) -> tuple[object, ...]:
    idle = None if save.idle_from is None else save.idle_from - first
    return save.storage, save.saved_at - first, idle, tuple(position - first for position in save.read_at)
