"""Drafts: records of a trace in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from elbowroom.capture.flops import flops
from elbowroom.capture.recording.profiler_stream import OpSeen
from elbowroom.trace import Category, Phase, Save, Storage

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of the element types that occur in the formulas for FLOPs."""


@dataclass(slots=True)
class StorageDraft:
    """One storage of the trace in the making."""

    size_bytes: int
    category: Category
    dtype: str
    from_stream: bool


@dataclass(slots=True)
class OpDraft:
    """One op in the making."""

    seen: OpSeen
    module: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    made: list[int] = field(default_factory=list[int])
    source_line: int | None = None

    @property
    def in_place(self) -> bool:
        """Whether its result is its first argument."""
        return self.seen.name.endswith("_") and not self.seen.name.endswith("__")

    def saves_before_work(self, storage: int) -> bool:
        """Return whether autograd saves a storage for this op before the op's work is done.

        Autograd saves an op's arguments before its work and its results after it, both within the op. The result of an
        op in place is its first argument. Other storages that an op writes are saved before it writes them, such as the
        noise of rrelu_with_noise: these may not leave.
        """
        return storage not in self.made and not (self.in_place and storage in self.writes[:1])


@dataclass(slots=True)
class SaveDraft:
    """One save in the making."""

    storage: int
    saved_at: int
    idle_from: int | None = None
    read_at: list[int] = field(default_factory=list[int])
    original_gone: bool = False
    dropped: bool = False
    copies: int = 0


@dataclass(slots=True)
class Brief:
    """Bytes that recipes hold while they run; they are part of no trace.

    Attributes:
        changes: the list in which the bytes are counted.
        runs: whether a recipe runs now.
    """

    changes: list[tuple[int, int, int]]
    runs: bool = False
    _held: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def alloc(self, at_ns: int, address: int, size_bytes: int, storages: list[StorageDraft]) -> None:
        """Note that a block was handed out."""
        if self.runs:
            self._held[address] = len(storages), size_bytes
            self.changes.append((at_ns, len(storages), size_bytes))
            storages.append(StorageDraft(size_bytes, "temporary", "", from_stream=True))

    def free(self, at_ns: int, address: int) -> None:
        """Note that a block was taken back, or counts as something else from now on."""
        storage, size_bytes = self._held.pop(address, (0, 0))
        if size_bytes:
            self.changes.append((at_ns, storage, -size_bytes))


def flops_of(op: OpDraft, storages: list[StorageDraft]) -> int:
    """FLOPs of an op, from its arguments and what it made."""
    width = ITEM_BYTES.get(storages[op.reads[0]].dtype, 4) if op.reads else 4
    return flops(op.seen.name, op.seen.arguments, [storages[storage].size_bytes // width for storage in op.writes])


def storage_of(known: StorageDraft) -> Storage:
    """The record of a storage."""
    return Storage(size_bytes=known.size_bytes, category=known.category, dtype=known.dtype)


def save_of(saved: SaveDraft) -> Save:
    """Return the record of a save; if it was read before only autograd held it, it never was idle."""
    idle = saved.idle_from
    if idle is not None and saved.read_at and idle >= saved.read_at[0]:
        idle = None
    return Save(
        storage=saved.storage,
        saved_at=saved.saved_at,
        idle_from=None if idle is None else max(idle, saved.saved_at),
        read_at=tuple(saved.read_at),
    )
