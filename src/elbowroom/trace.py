"""Trace: what a training does, in order. No decisions in it.

Positions. Ops are numbered from 0 in the order they were dispatched. What happens between two ops (autograd saving a
tensor, reading one back, a free) is placed by a *position* p: after op p - 1 ended and before op p starts. A position
lies between 0 and len(ops), both included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from elbowroom.errors import InvalidRecord

Phase = Literal["forward", "backward", "optimizer", "other"]
Category = Literal[
    "parameter",
    "gradient",
    "optimizer_state",
    "buffer",
    "input",
    "activation",
    "temporary",
    "workspace",
    "context",
]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "other")
CATEGORIES: tuple[Category, ...] = (
    "parameter",
    "gradient",
    "optimizer_state",
    "buffer",
    "input",
    "activation",
    "temporary",
    "workspace",
    "context",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One dispatched torch call.

    Attributes:
        name: dispatcher name, such as "aten.convolution.default".
        module: path of the module that called it, such as "UNet.model.0.conv"; "" outside any module.
        phase: the part of the step it belongs to.
        reads: ids of the storages it reads.
        writes: ids of the storages it writes, those it made included.
        duration_ns: measured time of the call.
        flops: floating point operations, 0 where no formula is known.
    """

    name: str
    module: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration_ns: int
    flops: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The bytes behind one or more tensors. Its id is its index in `Trace.storages`.

    Attributes:
        size_bytes: bytes that were requested of the allocator.
        category: what the bytes are for.
        dtype: element type of the first tensor seen on it, such as "float32"; "" for a workspace.
    """

    size_bytes: int
    category: Category
    dtype: str = ""


class Event(NamedTuple):
    """One allocation (size_bytes > 0) or free (size_bytes < 0), as it would be if every storage were kept.

    `op` is the op during or directly after which it happened; -1 says it was there before the first op.
    """

    op: int
    storage: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A storage that autograd saved for backward.

    Attributes:
        storage: its id.
        saved_at: position at which autograd first saved it.
        idle_from: first position from which only autograd holds it until it is read back; None where something else
            holds it all the time, so that swapping it frees nothing.
        read_at: positions at which it is read back, ascending; empty where it never is.
    """

    storage: int
    saved_at: int
    idle_from: int | None
    read_at: tuple[int, ...]


class Step(NamedTuple):
    """One training step: ops first_op to end_op - 1."""

    first_op: int
    end_op: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a training does, in order.

    Attributes:
        device: where it ran, such as "cpu".
        torch_version: version of torch it was recorded with.
        ops: dispatched calls in order.
        storages: every storage seen, by id.
        events: ordered alloc and free events, requested bytes.
        saves: what autograd saved, in the order of the first save (the n-th saved storage of a step).
        steps: the recorded steps, back to back; the last one is the steady state that plans are made for.
    """

    device: str
    torch_version: str
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    saves: tuple[Save, ...]
    steps: tuple[Step, ...]
