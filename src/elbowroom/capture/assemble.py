"""From a recording to records: the Trace (as if every storage were kept) and the measured Timeline (as it was).

The recorded step may have swapped some or all of its saved storages. The trace undoes that: a storage that left lives
on from the death of its original to the death of the last of its saved tensors and returned copies, which is how long
autograd would have held it. When the original died says from where on only autograd holds it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch

from elbowroom.capture.allocations import Item
from elbowroom.capture.recorder import Block, Note, OpNote, Recording
from elbowroom.errors import CaptureError
from elbowroom.machine import TierName
from elbowroom.runtime.executor import Happening
from elbowroom.timeline import Curve, Lane, Span, Timeline
from elbowroom.trace import Category, Event, Op, Save, Step, Storage, Trace


@dataclass(slots=True)
class _Bytes:
    """One storage of the trace in the making."""

    size_bytes: int
    category: Category
    dtype: str
    from_stream: bool


@dataclass(slots=True)
class _Saved:
    """One save in the making."""

    storage: int
    saved_at: int
    idle_from: int | None = None
    read_at: list[int] = field(default_factory=list[int])
    original_gone: bool = False
    dropped: bool = False
    copies: int = 0


@final
class Assembly:
    """One pass over a recording.

    Args:
        recording: what was recorded.
        tier: the lower tier of the run, which names the lanes of the timeline.
    """

    def __init__(self, recording: Recording, tier: TierName) -> None:
        self._recording = recording
        self._tier: TierName = tier
        self._storages: list[_Bytes] = []
        self._events: list[Event] = []
        self._ops: list[OpNote] = []
        self._op_reads: list[tuple[int, ...]] = []
        self._op_writes: list[tuple[int, ...]] = []
        self._saves: list[_Saved] = []
        self._by_entry: dict[int, _Saved] = {}
        self._open: dict[int, _Saved] = {}
        self._at: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._paused = 0
        self._steps: list[int] = []
        self._changes: list[tuple[int, int, int]] = []
        self._op_spans: list[tuple[int, int]] = []
        self._now_ns = 0
        self._run()

    # The pass

    def _run(self) -> None:
        for item in self._recording.stream or _sighted(self._recording.notes):
            self._now_ns = item.at_ns
            if item.kind == "alloc":
                self._alloc(item.address, item.size_bytes)
            elif item.kind == "free":
                self._free(item.address)
            else:
                self._marker(item)
        if not self._ops:
            raise CaptureError(
                "no op was recorded: the step did no tensor work on this thread. Check that the step function trains "
                "a model eagerly, and call it from the thread that captures"
            )
        self._on_step_ends(None)
        self._renumber()

    def _renumber(self) -> None:
        """Storages the last step saves come first, in that order: so a plan means the same in every recording."""
        first_op = self._steps[-2] if len(self._steps) > 1 else 0
        saved = (save.storage for save in self._saves if save.saved_at >= first_op)
        order = list(dict.fromkeys((*saved, *range(len(self._storages)))))
        new = [0] * len(order)
        for number, storage in enumerate(order):
            new[storage] = number
        self._storages = [self._storages[storage] for storage in order]
        self._events = [Event(op, new[storage], size_bytes) for op, storage, size_bytes in self._events]
        self._changes = [(at_ns, new[storage], change) for at_ns, storage, change in self._changes]
        self._op_reads = [tuple(new[storage] for storage in reads) for reads in self._op_reads]
        self._op_writes = [tuple(new[storage] for storage in writes) for writes in self._op_writes]
        for save in self._saves:
            save.storage = new[save.storage]

    def _marker(self, item: Item) -> None:
        note = self._recording.notes[item.marker]
        if isinstance(note, OpNote):
            if item.kind == "begin":
                self._op_begins(note)
            else:
                self._op_ends(note)
        elif item.kind == "begin":
            getattr(self, f"_on_{note.what}")(note)

    def _alloc(self, address: int, size_bytes: int) -> None:
        if address in self._at:
            self._free(address)
        if self._paused:
            return
        self._at[address] = self._new(Block(address, size_bytes, ""), "workspace", from_stream=True)

    def _free(self, address: int) -> None:
        storage = self._at.pop(address, None)
        if storage is None:
            return
        self._changes.append((self._now_ns, storage, -self._storages[storage].size_bytes))
        saved = self._open.get(storage)
        if saved is None:
            self._event(storage, -1)
        else:
            saved.original_gone = True
            saved.idle_from = len(self._ops)

    def _new(self, block: Block, category: Category, *, from_stream: bool = False, first: bool = False) -> int:
        storage = len(self._storages)
        self._storages.append(_Bytes(block.size_bytes, category, block.dtype, from_stream))
        if first:
            if block.size_bytes:
                self._events.append(Event(-1, storage, block.size_bytes))
        else:
            self._event(storage, 1)
        self._changes.append((self._now_ns, storage, block.size_bytes))
        return storage

    def _event(self, storage: int, sign: int) -> None:
        size_bytes = self._storages[storage].size_bytes
        if size_bytes:
            self._events.append(Event(len(self._ops) - 1, storage, sign * size_bytes))

    def _resolve(self, block: Block) -> int:
        """The storage at an address; memory that torch's allocator did not give out is met here for the first time."""
        storage = self._at.get(block.address)
        if storage is None:
            storage = self._copies.get(block.address)
        if storage is None:
            storage = self._at[block.address] = self._new(block, "input")
        known = self._storages[storage]
        if known.category == "workspace":
            known.category = "temporary"
        known.dtype = known.dtype or block.dtype
        return storage

    def _op_begins(self, note: OpNote) -> None:
        reads = [self._resolve(block) for block in note.reads]
        changes = [self._resolve(block) for block in note.changes]
        self._ops.append(note)
        self._op_reads.append(tuple(dict.fromkeys(reads)))
        self._op_writes.append(tuple(dict.fromkeys(changes)))
        self._op_spans.append((self._now_ns, self._now_ns))

    def _op_ends(self, note: OpNote) -> None:
        made = (self._resolve(block) for block in note.makes)
        self._op_writes[-1] = tuple(dict.fromkeys((*self._op_writes[-1], *made)))
        self._op_spans[-1] = (self._op_spans[-1][0], self._now_ns)

    # Notes, by `Note.what`

    def _on_exists(self, note: Note) -> None:
        for block in note.blocks:
            if block.address not in self._at:
                self._at[block.address] = self._new(block, "input", first=True)

    def _on_classify(self, note: Note) -> None:
        for block in note.blocks:
            known = self._storages[self._resolve(block)]
            if known.category not in ("parameter", "buffer"):
                known.category = note.category

    def _on_died(self, note: Note) -> None:
        address = note.blocks[0].address
        storage = self._at.get(address)
        if storage is not None and not self._storages[storage].from_stream:
            self._free(address)

    def _on_saved(self, note: Note) -> None:
        storage = self._resolve(note.blocks[0])
        known = self._storages[storage]
        if known.category in ("temporary", "workspace"):
            known.category = "activation"
        known.dtype = note.blocks[0].dtype or known.dtype
        saved = _Saved(storage, len(self._ops))
        self._saves.append(saved)
        self._open[storage] = self._by_entry[id(note.entry)] = saved

    def _on_reads_back(self, note: Note) -> None:
        saved = self._by_entry.get(id(note.entry))
        if saved is not None:
            saved.read_at.append(len(self._ops))

    def _on_placed(self, note: Note) -> None:
        block = note.blocks[0]
        saved = self._by_entry.get(id(note.entry))
        if saved is None:
            self._copies[block.address] = self._new(block, "activation")
            return
        saved.copies += 1
        self._copies[block.address] = saved.storage
        self._changes.append((self._now_ns, saved.storage, block.size_bytes))

    def _on_placed_died(self, note: Note) -> None:
        block = note.blocks[0]
        storage = self._copies.pop(block.address, None)
        if storage is None:
            return
        self._changes.append((self._now_ns, storage, -block.size_bytes))
        saved = self._by_entry.get(id(note.entry))
        if saved is None or saved.storage != storage:
            self._event(storage, -1)
            return
        saved.copies -= 1
        self._maybe_over(saved)

    def _on_dropped(self, note: Note) -> None:
        saved = self._by_entry.get(id(note.entry))
        if saved is not None:
            saved.dropped = True
            self._maybe_over(saved)

    def _maybe_over(self, saved: _Saved) -> None:
        """The keep-all end of a saved storage: nobody has the original, a saved tensor or a returned copy any more."""
        if saved.dropped and not saved.copies and self._open.get(saved.storage) is saved:
            del self._open[saved.storage]
            if saved.original_gone:
                self._event(saved.storage, -1)

    def _on_pause(self, _note: Note) -> None:
        self._paused += 1

    def _on_resume(self, _note: Note) -> None:
        self._paused -= 1

    def _on_step_ends(self, _note: Note | None) -> None:
        if len(self._ops) > (self._steps[-1] if self._steps else 0):
            self._steps.append(len(self._ops))

    # Results

    def trace(self) -> Trace:
        """What the recorded steps do when every storage is kept."""
        ops = tuple(
            Op(
                name=note.name,
                module=note.module,
                phase=note.phase,
                reads=reads,
                writes=writes,
                duration_ns=note.end_ns - note.start_ns,
                flops=note.flops,
            )
            for note, reads, writes in zip(self._ops, self._op_reads, self._op_writes, strict=True)
        )
        return Trace(
            device="cpu",
            torch_version=str(torch.__version__),
            ops=ops,
            storages=tuple(
                Storage(size_bytes=known.size_bytes, category=known.category, dtype=known.dtype)
                for known in self._storages
            ),
            events=tuple(self._events),
            saves=tuple(map(_save, self._saves)),
            steps=tuple(Step(first, end) for first, end in zip([0, *self._steps], self._steps, strict=False)),
        )

    def timeline(self, trace_id: str, outside_bytes: int = 0) -> Timeline:
        """What was measured: op spans, stalls, transfers and the device's allocated bytes."""
        start_ns = self._op_spans[0][0]
        end_ns = self._op_spans[-1][1]
        offset_ns = start_ns - self._ops[0].start_ns
        spans = [
            Span(lane="compute", kind="op", name=op.name, start_ns=begin - start_ns, end_ns=end - start_ns, op=index)
            for index, (op, (begin, end)) in enumerate(zip(self._ops, self._op_spans, strict=True))
        ]
        starts = [begin for begin, _ in self._op_spans]
        spans += [
            self._span(happening, offset_ns, start_ns, starts)
            for happening in self._recording.happenings
            if happening.end_ns + offset_ns >= start_ns
        ]
        curve, at_peak = self._curve(start_ns)
        return Timeline(
            source="measured",
            trace_id=trace_id,
            step_ns=max(end_ns - start_ns, *(span.end_ns for span in spans)),
            spans=tuple(sorted(spans, key=lambda span: span.start_ns)),
            curves=(curve,),
            at_peak=at_peak,
            outside_bytes=outside_bytes,
        )

    def _span(self, happening: Happening, offset_ns: int, start_ns: int, starts: list[int]) -> Span:
        saved = self._by_entry.get(id(happening.entry))
        storage = saved.storage if saved else None
        begin = max(happening.start_ns + offset_ns - start_ns, 0)
        end = max(happening.end_ns + offset_ns - start_ns, begin)
        if happening.kind == "stall":
            op = min(bisect_right(starts, happening.start_ns + offset_ns), len(starts) - 1)
            return Span(lane="compute", kind="stall", name="stall", start_ns=begin, end_ns=end, op=op, storage=storage)
        lanes: dict[str, Lane] = {"swap_out": "copy out", "swap_back": "copy back"}
        if self._tier == "disk":
            lanes = {"swap_out": "disk write", "swap_back": "disk read"}
        return Span(
            lane=lanes[happening.kind],
            kind="swap_out" if happening.kind == "swap_out" else "swap_back",
            name=f"storage {storage}" if storage is not None else "storage of an earlier step",
            start_ns=begin,
            end_ns=end,
            storage=storage,
            size_bytes=happening.size_bytes,
        )

    def _curve(self, start_ns: int) -> tuple[Curve, tuple[tuple[Category, int], ...]]:
        at_ns: list[int] = []
        level: list[int] = []
        total = peak = 0
        held: dict[Category, int] = {}
        at_peak: dict[Category, int] = {}
        for when_ns, storage, change in self._changes:
            total += change
            category = self._storages[storage].category
            held[category] = held.get(category, 0) + change
            if total > peak:
                peak, at_peak = total, dict(held)
            when = max(when_ns - start_ns, at_ns[-1] if at_ns else 0, 0)
            at_ns.append(when)
            level.append(max(total, 0))
        ordered = sorted(at_peak.items(), key=lambda pair: -pair[1])
        curve = Curve(tier="device", kind="allocated", at_ns=tuple(at_ns or [0]), size_bytes=tuple(level or [0]))
        return curve, tuple(pair for pair in ordered if pair[1] > 0)


def _save(saved: _Saved) -> Save:
    idle = saved.idle_from
    if idle is not None and saved.read_at and idle >= saved.read_at[0]:
        idle = None
    return Save(
        storage=saved.storage,
        saved_at=saved.saved_at,
        idle_from=None if idle is None else max(idle, saved.saved_at),
        read_at=tuple(saved.read_at),
    )


def _sighted(notes: list[OpNote | Note]) -> Iterator[Item]:
    """A stream from the notes alone, where the profiler was in use: blocks are those Python saw, scratch is missing."""
    known: set[int] = set()
    for number, note in enumerate(notes):
        if isinstance(note, OpNote):
            yield Item(note.start_ns, "begin", number, 0, 0)
            for block in note.makes:
                if block.address not in known:
                    known.add(block.address)
                    yield Item(note.end_ns, "alloc", -1, block.address, block.size_bytes)
            yield Item(note.end_ns, "end", number, 0, 0)
        else:
            yield Item(note.at_ns, "begin", number, 0, 0)
            if note.what == "died":
                known.discard(note.blocks[0].address)
                yield Item(note.at_ns, "free", -1, note.blocks[0].address, 0)
