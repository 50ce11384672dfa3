"""Recorder: it watches a running step and writes the recording of which assemble.py makes a Trace and a Timeline.

The stream (profiler_stream.py) has the ops and the allocator's blocks. Facts that only Python knows become notes: which
storages are saved, moved and read, which module runs, what a storage is for. The number of a note is a marker in the
stream. So both are in one order.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from elbowroom.capture.recording.allocator_layout import EMPTIED, fills
from elbowroom.capture.recording.cuda_memory import CudaMemory
from elbowroom.capture.recording.modules import ModulePaths
from elbowroom.capture.recording.profiler_stream import Item, ProfilerStream, RecordedBlock
from elbowroom.capture.source_lines import SourceLines
from elbowroom.engine.entries import Entry, Happening, Observer, StateEntry
from elbowroom.engine.mapped_files import takes_no_memory
from elbowroom.engine.storages import alive_of, dtype_name, storage_of
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.engine.tiers.streams import Streams
from elbowroom.torch_compat.core import buffers_of, in_compiled_backward, never_compiled, parameters_of, storage_key
from elbowroom.trace import Category


@dataclass(slots=True)
class Note:
    """A fact that Python knows. `what` names a method of assemble.py; the other fields are its arguments.

    Attributes:
        at_ns: `time.perf_counter_ns`, the clock of the happenings.
        mark: mark on the stream after all work issued before; None if the device has no streams.
        reached_ns: when the device reached the mark, on the same clock; 0 without one.
        source_line: number of the user's line that ran; None if it was not asked for, or is not known.
    """

    what: str
    entry: Entry | None = None
    blocks: tuple[RecordedBlock, ...] = ()
    category: Category = "temporary"
    path: str = ""
    at_ns: int = 0
    mark: Any = None
    reached_ns: int = 0
    source_line: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything recorded of a stretch of a run.

    Attributes:
        notes: the notes by number.
        stream: ops, blocks and the notes' numbers, in order.
        happenings: stalls and transfers.
        device: where it ran.
        compiled: whether some of it went through torch.compile.
        compiled_backward: whether a backward pass was compiled as a whole, by compiled autograd.
        source_lines: the user's lines by number.
    """

    notes: list[Note]
    stream: list[Item]
    happenings: list[Happening]
    device: torch.device
    compiled: bool
    compiled_backward: bool
    source_lines: list[str]


@final
class Recorder:
    """Recorder from `start` to `stop`; a process has one at a time.

    Args:
        on_root: called with each outermost module before it runs.
        device: where the step runs.
        streams: the device's streams; None if it has none.
    """

    def __init__(
        self, on_root: Callable[[torch.nn.Module], None], device: torch.device, streams: Streams | None = None
    ) -> None:
        self._on_root = on_root
        self._device = device
        self._streams = streams
        self._notes: list[Note] = []
        self._happenings: list[Happening] = []
        self._stream = ProfilerStream(device)
        self._lines = SourceLines()
        self._paths = ModulePaths(self._root, lambda path: self._note(Note("module", path=path)))
        self._watched: list[object] = []
        self._compiled_backward = False
        self.active = False

    # From outside

    def start(self, root: torch.nn.Module | None = None, tensors: Sequence[torch.Tensor] | None = None) -> bool:
        """Begin to record; return False if the user's own code runs torch's profiler.

        Args:
            root: the outermost module, if one is being called right now.
            tensors: all tensors that Python can reach; None to collect them.
        """
        if not self._stream.start():
            return False
        self.active = True
        self._existing(reachable_tensors() if tensors is None else tensors)
        self._paths.start()
        if root is not None:
            self._paths.enter_root(root)
        return True

    def stop(self) -> Recording:
        """Stop and return the recording."""
        self._note(Note("ended", mark=self._mark()))
        self.active = False
        self._paths.stop()
        self._watched.clear()
        stream = self._stream.stop()
        self._ask_times()
        return Recording(
            notes=self._notes,
            stream=stream,
            happenings=self._happenings,
            device=self._device,
            compiled=self._stream.compiled,
            compiled_backward=self._compiled_backward,
            source_lines=self._lines.texts,
        )

    @property
    def nodes(self) -> int:
        """The nodes that autograd has made in this thread since the recording began."""
        return self._stream.nodes

    def drop(self) -> Sequence[Happening]:
        """Stop, and throw all away but stalls and transfers, which are returned."""
        self.active = False
        self._paths.stop()
        self._watched.clear()
        self._stream.drop()
        return self._happenings

    def _mark(self) -> Any:
        return None if self._streams is None else self._streams.mark(self._streams.current(), timed=True)

    def _ask_times(self) -> None:
        """Get the times at which the device reached each mark and copy; this blocks until it is done."""
        if self._streams is None:
            return
        self._streams.finish()
        for note in self._notes:
            if note.mark is not None:
                note.reached_ns, note.mark = self._streams.time_ns(note.mark), None
        self._happenings = [timed for each in self._happenings for timed in _timed(each)]

    def observer(self) -> Observer:
        """Return the observer that reports the executor's moves to this recorder."""
        return Observer(
            placed=self._placed,
            stalled=self._happened,
            moved=self._happened,
            dropped=self._dropped,
            recomputes=self._recomputes,
            emptied=self._emptied,
        )

    def paused(self) -> AbstractContextManager[None]:
        """Return a context for the runtime's own work: blocks made in it are not part of the step."""
        return self._pause() if self.active else nullcontext()

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self._note(Note("pause", mark=self._mark()))
        try:
            yield
        finally:
            self._note(Note("resume", mark=self._mark()))

    def saved(self, entry: Entry, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        """Note that autograd saved this storage for the first time."""
        block = RecordedBlock(storage.data_ptr(), storage.nbytes(), dtype_name(dtype))
        self._note(Note("saved", entry, (block,), source_line=self._lines.here()))

    def saved_again(self) -> None:
        """Note that autograd saves a storage again, which tells the line of one more op."""
        self._note(Note("saved_again", source_line=self._lines.here()))

    def reads_back(self, entry: Entry) -> None:
        """Note that autograd reads a saved tensor of this entry back."""
        self._compiled_backward |= in_compiled_backward()
        self._note(Note("reads_back", entry))

    def classify(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Note what the storages of these tensors are for."""
        found = (_block(each, self._device) for tensor in tensors for each in inside(tensor))
        blocks = tuple(block for block in found if block is not None)
        self._note(Note("classify", blocks=blocks, category=category))

    def part_begins(self) -> None:
        """Note that a part of an optimizer's step, or an accumulation, begins here."""
        self._note(Note("part_begins"))

    def part_ends(
        self, states: Iterable[tuple[torch.UntypedStorage, torch.dtype]], category: Category = "optimizer_state"
    ) -> None:
        """Note that a part ends, and the states it needed on the device; for an accumulation, its gradient."""
        self._note(Note("part_ends", blocks=_blocks(states), category=category))

    def released(self, gradients: Iterable[tuple[torch.UntypedStorage, torch.dtype]]) -> None:
        """Note that nothing reads these gradients after the part that has just ended."""
        self._note(Note("released", blocks=_blocks(gradients)))

    def absent(self, entry: Entry, dtype: torch.dtype) -> None:
        """Note a gradient that is away where the recording begins."""
        self._note(Note("absent", entry, (RecordedBlock(0, entry.size_bytes, dtype_name(dtype)),)))

    def others(self, storages: Iterable[torch.UntypedStorage]) -> None:
        """Note states and gradients on the device that may leave before the step, if nothing in it uses them."""
        blocks = tuple(RecordedBlock(each.data_ptr(), each.nbytes(), "") for each in storages)
        self._note(Note("others", blocks=blocks))

    def used(self, parameters: Iterable[tuple[torch.UntypedStorage, torch.dtype]]) -> None:
        """Note that the op that begins uses the bytes of these parameters."""
        self._note(Note("used", blocks=_blocks(parameters)))

    def asked(self, storage: torch.UntypedStorage) -> None:
        """Note that Python read this gradient between backward and the optimizer's step."""
        self._note(Note("asked", blocks=(RecordedBlock(storage.data_ptr(), storage.nbytes(), ""),)))

    def step_ends(self) -> None:
        """Note that a step of the training ends here."""
        self._note(Note("step_ends"))

    def optimizer_runs(self, running: bool) -> None:
        """Note that ops from here on belong, or no longer belong, to the optimizer."""
        self._note(Note("optimizer_begins", source_line=self._lines.here()) if running else Note("optimizer_ends"))

    # Notes

    def _note(self, note: Note) -> None:
        if not self.active:
            return
        note.at_ns = time.perf_counter_ns()
        number = len(self._notes)
        self._notes.append(note)
        with self._stream.mark(number):
            pass

    def _existing(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note all tensors that Python can reach before the first op: the stream has no sizes of earlier blocks."""
        blocks: dict[int, RecordedBlock] = {}
        for tensor in tensors:
            block = _block(tensor, self._device)
            known = None if block is None else blocks.get(block.address)
            if block is not None and known is None and self._device.type == "cpu":
                # on other devices the stream has every free
                self._watch(tensor.untyped_storage(), Note("died", blocks=(block,)))
            if block is not None and (known is None or not known.size_bytes):
                blocks[block.address] = block  # of a file's tensors, one that is trained counts
        if self._device.type == "cuda":
            segments = CudaMemory(self._device).segments()
            dtypes = {address: block.dtype for address, block in blocks.items()}
            laid_out = tuple(RecordedBlock(*each, dtypes.get(each.address, "")) for each in fills(segments))
            emptied = any(each.kind == "expandable" for each in segments)
            self._note(Note("laid_out", blocks=laid_out, path=EMPTIED if emptied else ""))
        self._note(Note("exists", blocks=tuple(blocks.values()), mark=self._mark()))

    def _watch(self, storage: torch.UntypedStorage, on_death: Note) -> None:
        @never_compiled
        def died(_: object) -> None:
            self._note(on_death)

        self._watched.append(weakref.ref(storage, died))

    def _root(self, module: torch.nn.Module) -> None:
        self._on_root(module)
        self.classify("parameter", parameters_of(module))
        self.classify("buffer", buffers_of(module))

    def _emptied(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        if isinstance(entry, StateEntry):
            self._note(Note("state_left", entry, (RecordedBlock(storage.data_ptr(), storage.nbytes(), ""),)))

    def _placed(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        block = RecordedBlock(storage.data_ptr(), storage.nbytes(), "")
        if isinstance(entry, StateEntry):
            self._note(Note("state_came", entry, (block,)))
            return
        self._note(Note("placed", entry, (block,)))
        self._watch(storage, Note("placed_died", entry, (block,)))

    def _recomputes(self, begins: bool) -> None:
        self._note(Note("recomputes", path="begin" if begins else "end"))

    def _dropped(self, entry: Entry) -> None:
        self._note(Note("dropped", entry))

    def _happened(self, happening: Happening) -> None:
        self._happenings.append(happening)


def reachable_tensors() -> list[torch.Tensor]:
    """Return every tensor that Python can reach, found by type: `isinstance` would wake up lazy proxies."""
    return alive_of(torch.Tensor)


def live_ram_bytes() -> int:
    """Count the bytes of all storages in RAM that Python can reach, but for files that are not trained."""
    known = ((tensor, storage_of(tensor)) for tensor in reachable_tensors())
    in_ram = ((tensor, each) for tensor, each in known if each is not None and each.device.type == "cpu")
    return sum({storage_key(each): each.nbytes() for tensor, each in in_ram if not takes_no_memory(tensor)}.values())


def _timed(happening: Happening) -> Iterator[Happening]:
    """Yield a happening with the device's times, and the happenings of its bytes on the disk."""
    if happening.transfer is None:
        yield happening
        return
    start_ns, end_ns = happening.transfer.times()
    kind = happening.transfer.on_lane(happening.kind)
    yield replace(happening, kind=kind, start_ns=start_ns, end_ns=end_ns, transfer=None)
    for hop in happening.transfer.hops():
        yield Happening(hop.kind, happening.entry, hop.start_ns, hop.end_ns, hop.size_bytes)


def _block(tensor: torch.Tensor, device: torch.device) -> RecordedBlock | None:
    """Return the block of a tensor, empty if its bytes are a file's; None if this device holds no bytes of it."""
    if tensor.layout is not torch.strided or tensor.device != device:
        return None
    storage = storage_of(tensor)
    if storage is None or not storage.data_ptr():
        return None
    size_bytes = 0 if takes_no_memory(tensor) else storage.nbytes()
    return RecordedBlock(storage.data_ptr(), size_bytes, dtype_name(tensor.dtype))


def _blocks(found: Iterable[tuple[torch.UntypedStorage, torch.dtype]]) -> tuple[RecordedBlock, ...]:
    """Return the blocks of storages."""
    return tuple(RecordedBlock(each.data_ptr(), each.nbytes(), dtype_name(dtype)) for each, dtype in found)
