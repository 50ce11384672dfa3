"""Exchange times: what kind of collective an op is, and a trace whose collectives take the time of an interconnect."""

from __future__ import annotations

from dataclasses import replace

from elbowroom.hardware.interconnects import Interconnect, exchange_ns
from elbowroom.trace import Trace

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


def kind_of(name: str) -> str:
    """Return what kind of collective an op is; "" if it is none."""
    if not name.startswith(GROUPS):
        return ""
    return next((kind for part, kind in KINDS if part in name), "")


def with_exchange_times(trace: Trace, wires: Interconnect) -> Trace:
    """Return a trace whose collectives take the time that they take on an interconnect; other ops keep theirs."""
    if not trace.exchanges:
        return trace
    ops = list(trace.ops)
    for each in trace.exchanges:
        number, group = each.op, trace.communicators[each.communicator]
        duration_ns = exchange_ns(kind_of(ops[number].name) or "broadcast", each.size_bytes, group, wires)
        ops[number] = replace(ops[number], duration_ns=duration_ns)
    return replace(trace, ops=tuple(ops))
