"""Assemble: make records of a recording: the Trace, as if every storage were kept, and the measured Timeline.

The recorded step may have swapped some or all of its saved storages. The trace undoes that. A storage that left lives
as long as autograd would have held it: until the last of its saved tensors and returned copies has died. From the death
of its original on, only autograd holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch

from elbowroom.capture.device_durations import device_ns
from elbowroom.capture.drafts import Brief, OpDraft, SaveDraft, StorageDraft, flops_of, save_of, storage_of
from elbowroom.capture.measured import Clock, DeviceClock, MovedStorage, curve_of, spans_of, with_exchanges
from elbowroom.capture.recording.allocator_layout import BRIEF, EMPTIED, HOLE
from elbowroom.capture.recording.profiler_stream import Allocation, ExchangeSeen, Mark, OpSeen, RecordedBlock
from elbowroom.capture.recording.recorder import Note, Recording
from elbowroom.capture.recording.states_seen import StatesSeen
from elbowroom.engine.entries import Entry, Happening
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine, TierName
from elbowroom.step.handed_gradients import with_handed
from elbowroom.step.states_of_others import without_unused
from elbowroom.timeline import Timeline
from elbowroom.trace import Category, Event, Op, Phase, Step, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRead:
    """Everything that a run learns from the recording of one step.

    Attributes:
        trace: the step with every storage kept.
        peak_bytes: the most bytes that were allocated on the device at once.
        line: the measured timeline, of no trace yet.
        happenings: stalls and transfers.
        compiled: whether some of it went through torch.compile.
        compiled_backward: whether a backward pass was compiled as a whole.
    """

    trace: Trace
    peak_bytes: int
    line: Timeline
    happenings: Sequence[Happening]
    compiled: bool
    compiled_backward: bool


def step_read(recording: Recording, tier: TierName, machine: Machine) -> StepRead:
    """Return everything that a run learns from a recording, with which it is over."""
    assembly = Assembly(recording, tier, machine)
    return StepRead(
        trace=assembly.trace(),
        peak_bytes=assembly.peak_allocated_bytes(),
        line=assembly.timeline(""),
        happenings=recording.happenings,
        compiled=recording.compiled,
        compiled_backward=recording.compiled_backward,
    )


@final
class Assembly:
    """One pass over a recording.

    Args:
        recording: the recording.
        tier: the lower tier of the run, which names the lanes of the timeline.
        machine: where it ran: the rates of its GPU give the durations of ops. None for the host's times.
    """

    def __init__(self, recording: Recording, tier: TierName, machine: Machine | None = None) -> None:
        self._recording = recording
        self._gpu = machine if recording.device.type == "cuda" else None
        self._tier: TierName = tier
        self._storages: list[StorageDraft] = []
        self._events: list[Event] = []
        self._ops: list[OpDraft] = []
        self._open_op: OpDraft | None = None
        self._saves: list[SaveDraft] = []
        self._by_entry: dict[int, SaveDraft] = {}
        self._open: dict[int, SaveDraft] = {}
        self._at: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._states = StatesSeen()
        self._others = set[int]()
        self._paused = 0
        self._steps: list[int] = []
        self._empties: tuple[int, ...] = ()
        self._changes: list[tuple[int, int, int]] = []
        self._brief = Brief(self._changes)
        self._path = ""
        self._node_paths: dict[int, str] = {}
        self._node_lines: dict[int, int] = {}
        self._optimizer_line: int | None = None
        self._phase: Phase = "forward"
        self._offset_ns = 0
        self._now_ns = 0
        self._reached: list[tuple[int, int]] = []
        self._exchanges: list[ExchangeSeen] = []
        self._run()

    # The pass

    def _run(self) -> None:
        for at_ns, what, ends in self._recording.stream:
            self._now_ns = at_ns
            if isinstance(what, Allocation):
                if what.freed:
                    self._free(what.block.address)
                else:
                    self._alloc(what.block)
            elif isinstance(what, Mark):
                note = self._recording.notes[what.number]
                self._offset_ns = self._offset_ns or at_ns - note.at_ns
                if note.reached_ns:
                    self._reached.append((at_ns, note.reached_ns + self._offset_ns))
                getattr(self, f"_on_{note.what}")(note)
            elif isinstance(what, ExchangeSeen):
                self._exchanges.append(what)
            elif self._paused:
                continue
            elif ends:
                self._op_ends()
            else:
                self._op_begins(what)
        if not self._ops:
            raise CaptureError(
                "no op was recorded: the step did no tensor work on this thread. Check that the step function trains "
                "a model eagerly, and call it from the thread that captures"
            )
        self._on_step_ends(None)
        self._renumber()
        self._to_device_time()

    def _to_device_time(self) -> None:
        """Move ops and bytes to the times of the device: one with streams works later than the host issues the work.

        Times between two marks are stretched to the times at which the device reached the marks.
        """
        if not self._reached:
            return
        clock = DeviceClock(self._reached)
        for op in self._ops:
            op.seen.start_ns, op.seen.end_ns = clock.at(op.seen.start_ns), clock.at(op.seen.end_ns)
        self._changes = [(clock.at(at_ns), storage, change) for at_ns, storage, change in self._changes]

    def _renumber(self) -> None:
        """Renumber storages: those that the last step saves come first, in the order of saves.

        The storages of the parts of optimizers' steps come next. So a plan means the same in every recording.
        """
        first_op = self._steps[-2] if len(self._steps) > 1 else 0
        saved = (save.storage for save in self._saves if save.saved_at >= first_op)
        order = list(dict.fromkeys((*saved, *self._states.named(first_op), *range(len(self._storages)))))
        new = [0] * len(order)
        for number, storage in enumerate(order):
            new[storage] = number
        self._storages = [self._storages[storage] for storage in order]
        # A storage that came back without having left in the recording was there before the recording.
        events = sorted(self._events, key=lambda event: event.op)
        self._events = [Event(op, new[storage], size_bytes) for op, storage, size_bytes in events]
        self._states.renumber(new)
        self._others = {new[storage] for storage in self._others}
        self._changes = [(at_ns, new[storage], change) for at_ns, storage, change in self._changes]
        for op in self._ops:
            op.reads = tuple(new[storage] for storage in op.reads)
            op.writes = tuple(new[storage] for storage in op.writes)
        for save in self._saves:
            save.storage = new[save.storage]

    def _alloc(self, block: RecordedBlock) -> None:
        if block.address in self._at:
            self._free(block.address)
        if self._paused:
            self._brief.alloc(self._now_ns, block.address, block.size_bytes, self._storages)
            return
        storage = self._at[block.address] = self._new(block, "workspace", from_stream=True)
        if self._open_op is not None:
            self._open_op.made.append(storage)

    def _free(self, address: int) -> None:
        self._brief.free(self._now_ns, address)
        storage = self._at.pop(address, None)
        if storage is None:
            return
        self._changes.append((self._now_ns, storage, -self._storages[storage].size_bytes))
        saved = self._open.get(storage)
        if saved is None:
            self._event(storage, -1)
        else:
            saved.original_gone = True
            # If an op has made nothing yet, its arguments are still being saved: this is before its work.
            starting = self._open_op is not None and not self._open_op.made
            saved.idle_from = len(self._ops) - starting

    def _new(self, block: RecordedBlock, category: Category, *, from_stream: bool = False, first: bool = False) -> int:
        storage = len(self._storages)
        self._storages.append(StorageDraft(block.size_bytes, category, block.dtype, from_stream))
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

    def _resolve(self, block: RecordedBlock) -> int:
        """Return the storage at an address; memory that torch's allocator did not hand out is first seen here."""
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

    def _op_begins(self, seen: OpSeen) -> None:
        reads = [self._resolve(block) for block in seen.reads]
        writes = [self._resolve(block) for block in seen.writes]
        phase: Phase = "backward" if seen.backward else self._phase
        if not seen.backward:
            self._node_paths[seen.node] = self._path
        module = self._path or (self._node_paths.get(seen.node, "") if seen.backward else "")
        self._open_op = OpDraft(seen, module, phase, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)))
        if seen.backward:
            self._open_op.source_line = self._node_lines.get(seen.node)
        elif phase == "optimizer":
            self._open_op.source_line = self._optimizer_line
        self._ops.append(self._open_op)

    def _op_ends(self) -> None:
        op, self._open_op = self._open_op, None
        assert op is not None, "an op ends after it has begun"
        live = set(self._at.values())
        results = [storage for storage in op.made if storage in live]
        for storage in results:
            if self._storages[storage].category == "workspace":
                self._storages[storage].category = "temporary"
        op.writes = tuple(dict.fromkeys((*op.writes, *results)))

    # Notes, by `Note.what`

    def _on_exists(self, note: Note) -> None:
        for block in note.blocks:
            if block.address not in self._at:
                self._at[block.address] = self._new(block, "input", first=True)

    def _on_laid_out(self, note: Note) -> None:
        """Note the memory of a caching allocator as it was found; blocks unknown to Python belong to libraries."""
        holes: list[int] = []
        for block in note.blocks:
            storage = self._new(block, "input" if block.dtype else "workspace", first=True)
            if block.address not in (BRIEF, HOLE):
                self._at[block.address] = storage
                continue
            self._changes.pop()  # nothing was allocated
            if block.address == BRIEF:
                self._events.append(Event(-1, storage, -block.size_bytes))
            else:
                holes.append(storage)
        self._events += [Event(-1, storage, -self._storages[storage].size_bytes) for storage in holes]
        if note.path == EMPTIED:
            self._empties = (len(self._events),)

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
        self._on_saved_again(note)
        before = self._open_op is not None and self._open_op.saves_before_work(storage)
        earlier = self._saves[-1].saved_at if self._saves else 0  # what is saved next was not saved before that
        saved = SaveDraft(storage, max(len(self._ops) - before, earlier))
        self._saves.append(saved)
        self._open[storage] = self._by_entry[id(note.entry)] = saved

    def _on_saved_again(self, note: Note) -> None:
        """Autograd saves within the op, so the line that runs then is the op's, and that of its node's backward."""
        op = self._open_op
        if op is None or op.seen.backward or note.source_line is None:
            return
        op.source_line = note.source_line
        self._node_lines[op.seen.node] = note.source_line

    def _on_reads_back(self, note: Note) -> None:
        saved = self._by_entry.get(id(note.entry))
        if saved is not None:
            saved.read_at.append(len(self._ops))

    def _on_placed(self, note: Note) -> None:
        block = note.blocks[0]
        self._brief.free(self._now_ns, block.address)
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
            return
        storage = self._state_of(note)
        if storage is not None and storage in self._states.away:  # it was freed while it was away
            self._states.away.discard(storage)
            self._event(storage, -1)

    def _maybe_over(self, saved: SaveDraft) -> None:
        """End a saved storage as if all were kept: once its original, saved tensors and returned copies are gone."""
        if saved.dropped and not saved.copies and self._open.get(saved.storage) is saved:
            del self._open[saved.storage]
            if saved.original_gone:
                self._event(saved.storage, -1)

    def _on_part_begins(self, _note: Note) -> None:
        self._states.begins(len(self._ops))

    def _on_part_ends(self, note: Note) -> None:
        states = [self._resolve(block) for block in note.blocks]
        for storage in states:
            self._storages[storage].category = note.category
        self._states.ends(len(self._ops), states, note.category)

    def _on_released(self, note: Note) -> None:
        self._states.released([self._resolve(block) for block in note.blocks])

    def _on_absent(self, note: Note) -> None:
        """Note a gradient that was away before the recording. In the trace it is there, if the step uses or frees it.

        Else it is of a net that another optimizer steps, and stays away: Note: [Gradients of others] in
        engine/gradients.py.
        """
        if self._states.of(note.entry) is None:  # else it has left in this recording
            self._states.before[id(note.entry)] = note.blocks[0]

    def _state_of(self, note: Note) -> int | None:
        """Return the storage of what was away; None for what left before the recording, but for noted gradients."""
        storage, block = self._states.of(note.entry), self._states.before.pop(id(note.entry), None)
        if storage is None and block is not None:
            storage = self._new(block, "gradient", first=True)
            self._changes.pop()  # it was not on the device
            self._states.left(note.entry, storage)
        return storage

    def _on_others(self, note: Note) -> None:
        self._others.update(self._resolve(block) for block in note.blocks)

    def _on_used(self, note: Note) -> None:
        """Note a use of parameters: one that was away when the op began has no address among its arguments."""
        used = [self._resolve(block) for block in note.blocks]
        op = self._open_op
        for storage in used:
            self._storages[storage].category = "parameter"
        if op is not None:
            op.reads = tuple(dict.fromkeys((*op.reads, *(each for each in used if each not in op.writes))))
        self._states.used(len(self._ops) - (op is not None), len(self._ops), used)

    def _on_asked(self, note: Note) -> None:
        self._states.asked(self._resolve(note.blocks[0]))

    def _on_state_left(self, note: Note) -> None:
        """Note that a state left: it stays in the trace, and goes in the measured timeline."""
        storage = self._resolve(note.blocks[0])
        del self._at[note.blocks[0].address]
        self._states.left(note.entry, storage)
        self._changes.append((self._now_ns, storage, -self._storages[storage].size_bytes))

    def _on_state_came(self, note: Note) -> None:
        block = note.blocks[0]
        storage = self._state_of(note)
        if storage is None:
            storage = len(self._storages)
            self._storages.append(StorageDraft(block.size_bytes, "optimizer_state", "", from_stream=False))
            self._events.append(Event(-1, storage, block.size_bytes))
            self._states.left(note.entry, storage)
        self._states.away.discard(storage)
        self._at[block.address] = storage
        self._changes.append((self._now_ns, storage, block.size_bytes))

    def _on_module(self, note: Note) -> None:
        self._path = note.path
        self._phase = "forward"

    def _on_optimizer_begins(self, note: Note) -> None:
        self._phase = "optimizer"
        self._optimizer_line = note.source_line

    def _on_optimizer_ends(self, _note: Note) -> None:
        self._phase = "other"

    def _on_ended(self, _note: Note) -> None: ...

    def _on_recomputes(self, note: Note) -> None:
        self._brief.runs = note.path == "begin"

    def _on_pause(self, _note: Note) -> None:
        self._paused += 1

    def _on_resume(self, _note: Note) -> None:
        self._paused -= 1

    def _on_step_ends(self, _note: Note | None) -> None:
        self._phase = "forward"
        if len(self._ops) > (self._steps[-1] if self._steps else 0):
            self._steps.append(len(self._ops))

    # Results

    def _op(self, op: OpDraft) -> Op:
        work = flops_of(op, self._storages)
        modelled_ns = None if self._gpu is None else device_ns(op, work, self._storages, self._gpu)
        return Op(
            name=op.seen.name,
            module=op.module,
            phase=op.phase,
            reads=op.reads,
            writes=op.writes,
            duration_ns=op.seen.end_ns - op.seen.start_ns if modelled_ns is None else modelled_ns,
            flops=work,
        )

    def trace(self) -> Trace:
        """Return what the recorded steps do when every storage is kept."""
        ops = tuple(map(self._op, self._ops))
        used = dict.fromkeys(op.source_line for op in self._ops if op.source_line is not None)
        lines = {line: number for number, line in enumerate(used)}
        found = Trace(
            device=str(self._recording.device),
            torch_version=str(torch.__version__),
            ops=ops,
            storages=tuple(map(storage_of, self._storages)),
            events=tuple(self._events),
            empties=self._empties,
            saves=tuple(map(save_of, self._saves)),
            steps=tuple(Step(first, end) for first, end in zip([0, *self._steps], self._steps, strict=False)),
            parts=self._states.parts(),
            source_lines=tuple(self._recording.source_lines[line] for line in lines),
            op_source_lines=tuple(None if op.source_line is None else lines[op.source_line] for op in self._ops)
            if lines
            else (),
        )
        found = without_unused(found, self._others)
        # gradients that code read leave again only where operators are seen, as uses of parameters are
        return with_handed(found) if any(part.kind == "use" for part in found.parts) else found

    def timeline(self, trace_id: str, outside_bytes: int = 0) -> Timeline:
        """Return the measured timeline: op spans, stalls, transfers and the device's allocated bytes."""
        moved = [MovedStorage(each, self._storage_of(each.entry)) for each in self._recording.happenings]
        clock = Clock(start_ns=self._ops[0].seen.start_ns, offset_ns=self._offset_ns)
        seen = [op.seen for op in self._ops]
        spans = with_exchanges(spans_of(clock, seen, moved, self._tier), clock, self._exchanges)
        curve, at_peak = curve_of(clock, self._changes, self._storages)
        return Timeline(
            source="measured",
            trace_id=trace_id,
            step_ns=max(seen[-1].end_ns - clock.start_ns, *(span.end_ns for span in spans)),
            spans=spans,
            curves=(curve,),
            at_peak=at_peak,
            outside_bytes=outside_bytes,
        )

    def peak_allocated_bytes(self) -> int:
        """Return the measured peak: the most bytes that were allocated on the device at once."""
        level = accumulate(change for _, _, change in self._changes)
        return max(level, default=0)

    def _storage_of(self, entry: Entry) -> int | None:
        saved = self._by_entry.get(id(entry))
        return self._states.of(entry) if saved is None else saved.storage
