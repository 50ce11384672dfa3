"""Exchanges: what a process of many sends and receives in a step, by kind.

Computes: the collectives of the last recorded step. A collective counts with the largest storage that it reads or
writes: what is gathered, scattered or reduced.
Ignores: how an algorithm sends it; the bytes on the wire are up to twice as many.
Cost: linear in the ops of the step.
"""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.trace import Op, Trace

GROUPS = ("c10d.", "_c10d_functional.")
"""Libraries of collectives: of groups of processes, and of tensors on a mesh."""

KINDS = (
    ("reduce_scatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("all_reduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("all_gather", "all-gather"),
    ("alltoall", "all-to-all"),
    ("all_to_all", "all-to-all"),
    ("broadcast", "broadcast"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "receive"),
)
"""Parts of names, each with what it is called; the first that a name has counts."""


class Collectives(NamedTuple):
    """The collectives of one kind in a step.

    Attributes:
        kind: what they do, such as "all-gather".
        calls: how many there are.
        size_bytes: the sum over them of what is gathered, scattered, reduced or sent.
    """

    kind: str
    calls: int
    size_bytes: int


def collectives_of(trace: Trace) -> tuple[Collectives, ...]:
    """Return the collectives of the last step, the most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    first, end = trace.steps[-1] if trace.steps else (0, 0)
    for op in trace.ops[first:end]:
        kind = kind_of(op.name)
        if kind:
            calls, size_bytes = found.get(kind, (0, 0))
            found[kind] = calls + 1, size_bytes + _size_bytes(trace, op)
    made = (Collectives(kind, *figures) for kind, figures in found.items())
    return tuple(sorted(made, key=lambda each: (-each.size_bytes, each.kind)))


def kind_of(name: str) -> str:
    """Return what kind of collective an op is; "" if it is none."""
    if not name.startswith(GROUPS):
        return ""
    return next((kind for part, kind in KINDS if part in name), "")


def _size_bytes(trace: Trace, op: Op) -> int:
    return max((trace.storages[each].size_bytes for each in (*op.reads, *op.writes)), default=0)
