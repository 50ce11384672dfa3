"""Ledger trace: make a Trace of the ledger of a virtual device."""

from __future__ import annotations

import torch

from elbowroom.capture.drafts import ITEM_BYTES, save_of
from elbowroom.capture.durations.convolutions import choices
from elbowroom.capture.durations.costs import duration_ns
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.flops import flops
from elbowroom.capture.virtual.ledger import Ledger, StorageLine
from elbowroom.machine import Machine
from elbowroom.trace import Event, Exchange, OnStream, Op, OpStream, Remark, Step, Storage, Trace, Workspace

OWNED = ("parameter", "buffer", "gradient", "optimizer_state", "workspace")
"""Categories that are never swapped, whatever autograd saves."""


def assemble(ledger: Ledger, step_ends: list[int], machine: Machine) -> Trace:
    """Make the trace of a ledger.

    Args:
        ledger: the ledger.
        step_ends: number of ops up to the end of each step.
        machine: the machine whose rates give the durations of ops.
    """
    workspaces, lines, texts = _workspaces(ledger), _source_lines(ledger), ledger.source_lines.texts
    ops = tuple(_op(line, ledger.storages, workspaces.get(i, 0), machine) for i, line in enumerate(ledger.ops))
    return Trace(
        device="cuda:0" if machine.compute_capability else "cpu",
        torch_version=str(torch.__version__),
        ops=ops,
        storages=tuple(
            Storage(size_bytes=line.size_bytes, category=line.category, dtype=line.dtype) for line in ledger.storages
        ),
        events=tuple(Event(*event) for event in ledger.events),
        saves=tuple(save_of(each) for each in ledger.saves if ledger.storages[each.storage].category not in OWNED),
        steps=tuple(Step(first, end) for first, end in zip([0, *step_ends], step_ends, strict=False)),
        parts=tuple(ledger.parts),
        workspaces=tuple(
            Workspace(storage=storage, least_bytes=least, most_bytes=most)
            for storage, (least, most) in sorted(ledger.bounds.items())
        ),
        empties=tuple(ledger.empties),
        streams=tuple(OnStream(number, line.stream) for number, line in enumerate(ledger.storages) if line.stream),
        remarks=tuple(
            Remark(kind=kind, name=name, count=count) for (kind, name), count in sorted(ledger.remarks.items())
        ),
        communicators=tuple(ledger.communicators),
        exchanges=tuple(Exchange(i, *line.exchange) for i, line in enumerate(ledger.ops) if line.exchange),
        op_streams=_op_streams(ledger),
        source_lines=tuple(texts[number] for number in lines),
        op_source_lines=tuple(None if line.source_line is None else lines[line.source_line] for line in ledger.ops),
    )


def _op_streams(ledger: Ledger) -> tuple[OpStream, ...]:
    """Return the ops of other streams, which are numbered as they first come."""
    numbers: dict[int, int] = {}
    named = ((i, line.stream) for i, line in enumerate(ledger.ops) if line.stream)
    return tuple(OpStream(i, numbers.setdefault(stream, len(numbers) + 1)) for i, stream in named)


def _workspaces(ledger: Ledger) -> dict[int, int]:
    """Return by op the bytes of the largest workspace that it makes."""
    found: dict[int, int] = {}
    for op, storage, size_bytes in ledger.events:
        if ledger.storages[storage].category == "workspace":
            found[op] = max(found.get(op, 0), size_bytes)
    return found


def _source_lines(ledger: Ledger) -> dict[int, int]:
    """Return the index in the trace of each line that an op has, in the order of the ops."""
    used = dict.fromkeys(line.source_line for line in ledger.ops if line.source_line is not None)
    return {number: index for index, number in enumerate(used)}


def _op(line: OpLine, storages: list[StorageLine], workspace_bytes: int, machine: Machine) -> Op:
    width = ITEM_BYTES.get(storages[line.reads[0]].dtype, 4) if line.reads else 4
    work = flops(line.name, line.arguments, [storages[number].size_bytes // width for number in line.writes])
    offered = choices(line, workspace_bytes, machine)
    return Op(
        name=line.name,
        module=line.module,
        phase=line.phase,
        reads=line.reads,
        writes=line.writes,
        duration_ns=offered[0].duration_ns if offered else duration_ns(line, work, machine),
        flops=work,
        choices=offered,
    )
