"""From the ledger of a virtual device to a Trace."""

from __future__ import annotations

import torch

from elbowroom.capture.drafts import ITEM_BYTES, save_of
from elbowroom.capture.flops import flops
from elbowroom.capture.virtual.ledger import Ledger, OpLine, StorageLine
from elbowroom.machine import Machine
from elbowroom.trace import Event, Op, Remark, Step, Storage, Trace

OWNED = ("parameter", "buffer", "gradient", "optimizer_state", "workspace")
"""Categories that are never swapped, whatever autograd saves."""

LAUNCH_NS = 4_000
"""Time between two kernels that the host starts one after the other: no op of eager torch takes less."""


def assemble(ledger: Ledger, step_ends: list[int], machine: Machine) -> Trace:
    """The trace of a ledger.

    Args:
        ledger: what was recorded.
        step_ends: number of ops up to the end of each step.
        machine: whose rates the durations of ops follow.
    """
    ops = tuple(_op(line, ledger.storages, machine) for line in ledger.ops)
    return Trace(
        device="cuda:0",
        torch_version=str(torch.__version__),
        ops=ops,
        storages=tuple(
            Storage(size_bytes=line.size_bytes, category=line.category, dtype=line.dtype) for line in ledger.storages
        ),
        events=tuple(Event(*event) for event in ledger.events),
        saves=tuple(save_of(each) for each in ledger.saves if ledger.storages[each.storage].category not in OWNED),
        steps=tuple(Step(first, end) for first, end in zip([0, *step_ends], step_ends, strict=False)),
        remarks=tuple(
            Remark(kind=kind, name=name, count=count) for (kind, name), count in sorted(ledger.remarks.items())
        ),
    )


def _op(line: OpLine, storages: list[StorageLine], machine: Machine) -> Op:
    width = ITEM_BYTES.get(storages[line.reads[0]].dtype, 4) if line.reads else 4
    shapes = tuple(each for each in line.arguments if each is None or isinstance(each, tuple | bool))
    work = flops(line.name, shapes, [storages[number].size_bytes // width for number in line.writes])
    return Op(
        name=line.name,
        module=line.module,
        phase=line.phase,
        reads=line.reads,
        writes=line.writes,
        duration_ns=_duration_ns(work, line.moved_bytes, machine),
        flops=work,
    )


def _duration_ns(work: int, moved_bytes: int, machine: Machine) -> int:
    """The longest of launching a kernel, doing its operations and moving its bytes."""
    compute = work * 10**9 // machine.flops_per_s if machine.flops_per_s else 0
    memory = moved_bytes * 10**9 // machine.memory_bytes_per_s if machine.memory_bytes_per_s else 0
    return max(LAUNCH_NS, compute, memory)
