"""Trace: what a training does, in order. It has no decisions.

Positions. Ops are numbered from 0 in the order they were dispatched. Between two ops autograd may save a tensor or read
one back, and storages may be freed. Such an event has a *position* p: after op p - 1 ended and before op p starts. A
position is from 0 to len(ops), both included.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from elbowroom.files import field_rules as rules
from elbowroom.files.record_files import Filed, encode
from elbowroom.hardware.interconnects import Communicator

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
RemarkKind = Literal[
    "unknown_op",
    "not_compared",
    "assumed_value",
    "workspace_model",
    "unsupported",
    "ended_early",
    "kept_away",
    "allocator_settings",
    "compiled",
    "exported",
]
PartKind = Literal["optimizer", "accumulation", "use", "handed"]
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
REMARK_KINDS: tuple[RemarkKind, ...] = get_args(RemarkKind)
PHASES: tuple[Phase, ...] = get_args(Phase)
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One algorithm that an op could run with.

    Attributes:
        name: name, such as "implicit_gemm".
        duration_ns: time of the call with it.
        workspace_bytes: scratch memory that it takes.
    """

    name: str
    duration_ns: int
    workspace_bytes: int

    def __post_init__(self) -> None:
        rules.text("Choice.name", self.name)
        rules.integer("Choice.duration_ns", self.duration_ns)
        rules.integer("Choice.workspace_bytes", self.workspace_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One dispatched torch call.

    Attributes:
        name: dispatcher name without its overload, such as "aten.convolution".
        module: path of the module that called it, such as "UNet.model.0.conv"; "" outside any module.
        phase: the part of the step it belongs to.
        reads: ids of the storages it reads.
        writes: ids of the storages it writes, those it made included.
        duration_ns: measured time of the call.
        flops: floating point operations, 0 if no formula is known.
        choices: algorithms it could run with, if they are known. The first is the one it ran with. Its workspace is the
            largest storage of category "workspace" that the op allocates.
    """

    name: str
    module: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    duration_ns: int
    flops: int = 0
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        rules.text("Op.name", self.name)
        rules.text("Op.module", self.module)
        rules.one_of("Op.phase", self.phase, PHASES)
        rules.integers("Op.reads", self.reads)
        rules.integers("Op.writes", self.writes)
        rules.integer("Op.duration_ns", self.duration_ns)
        rules.integer("Op.flops", self.flops)
        if self.choices != ():
            rules.records("Op.choices", self.choices, Choice)
            rules.distinct("Op.choices.name", [choice.name for choice in self.choices])
            if (first := self.choices[0].duration_ns) != self.duration_ns:
                rules.refuse("Op.choices[0].duration_ns", first, f"the op's duration_ns, {self.duration_ns}")


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

    def __post_init__(self) -> None:
        rules.integer("Storage.size_bytes", self.size_bytes)
        rules.one_of("Storage.category", self.category, CATEGORIES)
        rules.text("Storage.dtype", self.dtype)


class Event(NamedTuple):
    """One allocation (size_bytes > 0) or free (size_bytes < 0), as it would be if every storage were kept.

    Attributes:
        op: the op during or directly after which it happened; -1 for before the first op.
        storage: its id.
        size_bytes: above 0 for an allocation, below 0 for a free.
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
        idle_from: first position from which only autograd holds it until it is read back; None if something else
            holds it all the time, so that swapping it frees nothing.
        read_at: positions at which it is read back, ascending; empty if it never is.
    """

    storage: int
    saved_at: int
    idle_from: int | None
    read_at: tuple[int, ...]

    def __post_init__(self) -> None:
        rules.integer("Save.storage", self.storage)
        rules.integer("Save.saved_at", self.saved_at)
        rules.integers("Save.read_at", self.read_at, least=self.saved_at)
        rules.ascending("Save.read_at", self.read_at)
        if self.idle_from is not None:
            rules.integer("Save.idle_from", self.idle_from, least=self.saved_at)


class Step(NamedTuple):
    """One training step: ops first_op to end_op - 1.

    Attributes:
        first_op: its first op.
        end_op: one past its last op.
    """

    first_op: int
    end_op: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a step at whose ends the runtime gets control.

    It is a part of an optimizer's step, with the ops of some of its parameters. Or it is an accumulation, in which
    backward writes the gradient of a parameter. An accumulation that adds nothing has no op. Or it is one op that uses
    the bytes of parameters; such uses may lie inside other parts. Or it is one op of torch's clipping or gradient
    scaler on gradients, which come back for it in parts and leave again.

    Attributes:
        first_op: its first op.
        end_op: one past its last op.
        storages: storages that must be on the device in it and may be away outside, in a fixed order: optimizer states
            and the gradients that nothing reads after the part, the gradient of an accumulation, or the parameters of a
            use. Those of a handed op may be away before and after it.
        kind: "optimizer" for a part of an optimizer's step, "accumulation", "use" or "handed".
    """

    first_op: int
    end_op: int
    storages: tuple[int, ...]
    kind: PartKind = "optimizer"

    def __post_init__(self) -> None:
        rules.integer("Part.first_op", self.first_op)
        rules.integer("Part.end_op", self.end_op, least=self.first_op)
        rules.integers("Part.storages", self.storages)
        rules.distinct("Part.storages", self.storages)
        rules.one_of("Part.kind", self.kind, PART_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A workspace whose size is not known: a library decides it.

    Attributes:
        storage: its id; the storage has the likely size.
        least_bytes: the smallest size that it may have; 0 for none at all.
        most_bytes: the largest size that it may have.
    """

    storage: int
    least_bytes: int
    most_bytes: int

    def __post_init__(self) -> None:
        rules.integer("Workspace.storage", self.storage)
        rules.integer("Workspace.least_bytes", self.least_bytes)
        rules.integer("Workspace.most_bytes", self.most_bytes, least=self.least_bytes)


class OnStream(NamedTuple):
    """A storage that another stream than the default one allocated, or a private pool.

    Its block belongs to that stream: the allocator gives it to no other. Numbers from `PRIVATE` of allocator/blocks.py
    on stand for private pools, as CUDA graphs have them. These keep their memory when the cache is emptied.

    Attributes:
        storage: its id.
        stream: number of the stream, or of a pool.
    """

    storage: int
    stream: int


class Exchange(NamedTuple):
    """A collective: an op in which tensors go to other ranks, or come from them.

    Attributes:
        op: its op.
        communicator: index of its group in `Trace.communicators`.
        size_bytes: what is gathered, scattered, reduced or sent.
        peer: rank in the job to which a message goes, or from which it comes; None for a collective of all ranks.
        late_ns: how much later than this rank the others are there, as far as they were captured too.
    """

    op: int
    communicator: int
    size_bytes: int
    peer: int | None = None
    late_ns: int = 0


class OpStream(NamedTuple):
    """An op that does not run on the default stream, or a collective that another stream called.

    Attributes:
        op: its id.
        stream: number of the stream, from 1.
    """

    op: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that the capture did not know, or assumed.

    Attributes:
        kind: what it is about, such as "unknown_op" for an op without a rule for its scratch memory. An "assumed_value"
            was made up; "kept_away" is an act that an estimate kept the script from. "exported" is what a graph that
            another framework exported leaves open.
        name: name of the op or call, or what happened and where.
        count: how often it happened.
    """

    kind: RemarkKind
    name: str
    count: int

    def __post_init__(self) -> None:
        rules.one_of("Remark.kind", self.kind, REMARK_KINDS)
        rules.text("Remark.name", self.name)
        rules.integer("Remark.count", self.count, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(Filed):
    """What a training does, in order.

    Attributes:
        device: where it ran, such as "cpu".
        torch_version: version of torch with which it was recorded; of a step of JAX such as "jax 0.10.2".
        ops: dispatched calls in order.
        storages: every storage seen, by id.
        events: ordered alloc and free events, requested bytes.
        saves: what autograd saved, in the order of the first save (the n-th saved storage of a step).
        steps: the recorded steps, back to back; the last one is the steady state that plans are made for.
        remarks: what the capture did not know or assumed.
        parts: parts of optimizers' steps, if these were carried out in parts, accumulations of gradients, if these may
            move, and uses of parameters, if these may move. The runtime gets control at their ends.
        workspaces: workspaces whose size is an interval, by rising id of the storage.
        empties: places in `events`, ascending: the allocator's cache is emptied directly before that event.
        streams: storages that the default stream did not allocate, by rising id.
        source_lines: lines of the user's code that ops come from, such as "train.py:41 in attention", each once.
        communicators: groups of ranks that exchange tensors.
        exchanges: collectives, in the order of their ops.
        op_streams: ops of other streams than the default one, in order.
        op_source_lines: index in `source_lines` per op, None if the line is not known; empty if none is.
        derived: cached facts that follow from the trace, by name; they are not saved.
    """

    device: str
    torch_version: str
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    saves: tuple[Save, ...]
    steps: tuple[Step, ...]
    remarks: tuple[Remark, ...] = ()
    parts: tuple[Part, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    empties: tuple[int, ...] = ()
    streams: tuple[OnStream, ...] = ()
    source_lines: tuple[str, ...] = ()
    op_source_lines: tuple[int | None, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    op_streams: tuple[OpStream, ...] = ()
    _id: str = field(init=False, repr=False, compare=False, default="")
    derived: dict[str, object] = field(init=False, repr=False, compare=False, default_factory=dict[str, object])

    @property
    def id(self) -> str:
        """Name of this trace in plans and timelines: the first 16 hex digits of the SHA-256 of its file."""
        if not self._id:
            object.__setattr__(self, "_id", hashlib.sha256(encode(self)).hexdigest()[:16])
        return self._id

    @property
    def made_with(self) -> str:
        """Library and version that it was recorded with, such as "torch 2.13.0" or "jax 0.10.2"."""
        return self.torch_version if self.torch_version.startswith("jax ") else f"torch {self.torch_version}"

    def source_line(self, op: int) -> str:
        """Return the line of the user's code that an op comes from; "" if it is not known."""
        index = self.op_source_lines[op] if self.op_source_lines and op >= 0 else None
        return "" if index is None else self.source_lines[index]

    def __repr__(self) -> str:
        counts = f"{len(self.steps)} steps, {len(self.ops)} ops, {len(self.storages)} storages, {len(self.saves)} saves"
        return f"<Trace of {self.device}, {self.made_with}: {counts}>"

    def __post_init__(self) -> None:
        rules.text("Trace.device", self.device)
        rules.text("Trace.torch_version", self.torch_version)
        rules.records("Trace.ops", self.ops, Op)
        rules.records("Trace.storages", self.storages, Storage)
        rules.records("Trace.events", self.events, Event)
        rules.records("Trace.saves", self.saves, Save)
        rules.records("Trace.steps", self.steps, Step)
        rules.records("Trace.remarks", self.remarks, Remark)
        rules.records("Trace.parts", self.parts, Part)
        rules.records("Trace.workspaces", self.workspaces, Workspace)
        rules.records("Trace.streams", self.streams, OnStream)
        rules.records("Trace.communicators", self.communicators, Communicator)
        rules.records("Trace.exchanges", self.exchanges, Exchange)
        rules.records("Trace.op_streams", self.op_streams, OpStream)
        rules.integers("Trace.empties", self.empties, most=len(self.events))
        rules.ascending("Trace.empties", self.empties)
        self._check_ops()
        self._check_events()
        self._check_saves()
        self._check_steps()
        self._check_parts()
        self._check_workspaces()
        self._check_streams()
        self._check_source_lines()
        self._check_exchanges()

    def _check_ops(self) -> None:
        count = len(self.storages)
        for index, op in enumerate(self.ops):
            if op.reads + op.writes and (given := max(op.reads + op.writes)) >= count:
                rules.refuse(f"Trace.ops[{index}]: storage", given, f"an id below {count}, the number of storages")

    def _check_events(self) -> None:
        """Check that ops are in order, and that each storage is allocated and freed at most once, with its size."""
        live: dict[int, bool] = {}
        last_op = -1
        for index, (op, storage, size_bytes) in enumerate(self.events):
            where = f"Trace.events[{index}]"
            rules.integer(f"{where}.op", op, least=last_op, most=len(self.ops) - 1)
            rules.integer(f"{where}.storage", storage, most=len(self.storages) - 1)
            of_storage = self.storages[storage].size_bytes
            if type(size_bytes) is not int or abs(size_bytes) != of_storage or not size_bytes:
                allowed = f"{of_storage} to allocate storage {storage} or {-of_storage} to free it, and not 0"
                rules.refuse(f"{where}.size_bytes", size_bytes, allowed)
            if size_bytes > 0 and storage in live:
                rules.refuse(where, tuple(self.events[index]), f"one allocation of storage {storage}")
            if size_bytes < 0 and not live.get(storage):
                rules.refuse(where, tuple(self.events[index]), f"one free of storage {storage}, after its allocation")
            live[storage] = size_bytes > 0
            last_op = op

    def _check_saves(self) -> None:
        last = 0
        for index, save in enumerate(self.saves):
            where = f"Trace.saves[{index}]"
            rules.integer(f"{where}.storage", save.storage, most=len(self.storages) - 1)
            rules.integer(f"{where}.saved_at", save.saved_at, least=last, most=len(self.ops))
            rules.integers(f"{where}.read_at", save.read_at, most=len(self.ops))
            if save.idle_from is not None:
                rules.integer(f"{where}.idle_from", save.idle_from, most=len(self.ops))
            last = save.saved_at

    def _check_steps(self) -> None:
        if not self.steps:
            rules.refuse("Trace.steps", self.steps, "at least one step")
        last = len(self.ops)
        rules.integer("Trace.steps[0].first_op", self.steps[0].first_op, most=last)
        expected = self.steps[0].first_op
        for index, step in enumerate(self.steps):
            rules.integer(f"Trace.steps[{index}].first_op", step.first_op, least=expected, most=expected)
            rules.integer(f"Trace.steps[{index}].end_op", step.end_op, least=step.first_op, most=last)
            expected = step.end_op

    def _check_parts(self) -> None:
        """Check that parts follow one another, those of one op by themselves, and that none crosses a step's end."""
        last = {"use": 0, "handed": 0, "": 0}
        for index, part in enumerate(self.parts):
            where = f"Trace.parts[{index}]"
            group = part.kind if part.kind in last else ""
            rules.integer(f"{where}.first_op", part.first_op, least=last[group], most=len(self.ops))
            rules.integer(f"{where}.end_op", part.end_op, most=len(self.ops))
            rules.integers(f"{where}.storages", part.storages, most=len(self.storages) - 1)
            last[group] = part.end_op
            if any(part.first_op < step.end_op < part.end_op for step in self.steps):
                rules.refuse(f"{where}.end_op", part.end_op, "an op of the step in which it begins")

    def _check_workspaces(self) -> None:
        """Check that each workspace is a storage of that category, with a size within its bounds."""
        last = 0
        for index, each in enumerate(self.workspaces):
            where = f"Trace.workspaces[{index}]"
            rules.integer(f"{where}.storage", each.storage, least=last, most=len(self.storages) - 1)
            of = self.storages[each.storage]
            if of.category != "workspace":
                rules.refuse(f"{where}.storage", each.storage, "a storage of category 'workspace'")
            if not each.least_bytes <= of.size_bytes <= each.most_bytes:
                given, allowed = (each.least_bytes, each.most_bytes), f"bounds of the storage's {of.size_bytes} bytes"
                rules.refuse(where, given, allowed)
            last = each.storage + 1

    def _check_streams(self) -> None:
        """Check that each entry is of another storage."""
        last = 0
        for index, (storage, stream) in enumerate(self.streams):
            where = f"Trace.streams[{index}]"
            rules.integer(f"{where}.storage", storage, least=last, most=len(self.storages) - 1)
            rules.integer(f"{where}.stream", stream, least=1)
            last = storage + 1

    def _check_exchanges(self) -> None:
        """Check that collectives and streams are of ops, in order, and that groups have the ranks they say."""
        for index, group in enumerate(self.communicators):
            where = f"Trace.communicators[{index}]"
            rules.integer(f"{where}.ranks", group.ranks, least=1)
            rules.integer(f"{where}.local_ranks", group.local_ranks, least=1, most=group.ranks)
            rules.integer(f"{where}.node_ranks", group.node_ranks, least=group.local_ranks)
        last = 0
        for index, (op, communicator, size_bytes, peer, late_ns) in enumerate(self.exchanges):
            where = f"Trace.exchanges[{index}]"
            rules.integer(f"{where}.op", op, least=last, most=len(self.ops) - 1)
            rules.integer(f"{where}.communicator", communicator, most=len(self.communicators) - 1)
            rules.integer(f"{where}.size_bytes", size_bytes)
            rules.integer(f"{where}.peer", 0 if peer is None else peer)
            rules.integer(f"{where}.late_ns", late_ns)
            last = op + 1
        last = 0
        for index, (op, stream) in enumerate(self.op_streams):
            where = f"Trace.op_streams[{index}]"
            rules.integer(f"{where}.op", op, least=last, most=len(self.ops) - 1)
            rules.integer(f"{where}.stream", stream, least=1)
            last = op + 1

    def _check_source_lines(self) -> None:
        """One index or None for each op, or nothing at all."""
        for index, line in enumerate(self.source_lines):
            rules.text(f"Trace.source_lines[{index}]", line)
        rules.distinct("Trace.source_lines", self.source_lines)
        given, ops = len(self.op_source_lines), len(self.ops)
        if given not in (0, ops):
            rules.refuse("Trace.op_source_lines", f"{given} values", f"one for each of the {ops} ops, or none")
        known = tuple(line for line in self.op_source_lines if line is not None)
        rules.integers("Trace.op_source_lines", known, most=len(self.source_lines) - 1)
