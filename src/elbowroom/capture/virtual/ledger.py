"""The ledger of a virtual device: ops, storages and the order in which they are made and die.

A storage is identified by its StorageImpl and dies when torch drops it. A weak reference reports that moment.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import final

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from elbowroom.capture.drafts import SaveDraft
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.source_lines import SourceLines
from elbowroom.capture.virtual.ops import sparse
from elbowroom.capture.virtual.torch_cuda.cuda_streams import VirtualStreams
from elbowroom.capture.virtual.wrappers import is_wrapper, parts_of
from elbowroom.engine.mapped_files import takes_no_memory
from elbowroom.hardware.interconnects import Communicator
from elbowroom.torch_compat.core import storage_key, unwrapped
from elbowroom.trace import Category, Part, PartKind, RemarkKind

BLOCK_BYTES = 512
"""Size to whose multiples the allocator rounds requests up."""


@final
class StorageLine:
    """One storage.

    Attributes:
        stream: the stream that allocated it, as in a trace.
    """

    __slots__ = ("category", "dtype", "size_bytes", "stream")

    def __init__(self, size_bytes: int, category: Category, dtype: str, stream: int = 0) -> None:
        self.size_bytes = size_bytes
        self.stream = stream
        self.category: Category = category
        self.dtype = dtype


@final
class _StorageWatch(weakref.ref[torch.UntypedStorage]):
    """Reference to a storage that knows its number."""

    __slots__ = ("key", "number")
    key: int
    number: int


@final
class Ledger:
    """What happened on the device, in order.

    Attributes:
        ops: the ops.
        storages: every storage, by number.
        events: (op, storage, bytes), negative bytes for a free; op -1 before the first one.
        saves: what autograd saved, in order.
        empties: places in `events` before which the allocator's cache is emptied.
        bounds: least and most bytes of workspaces whose size is not known, by storage.
        parts: parts of optimizers' steps and accumulations of gradients, if steps are carried out in parts.
        remarks: number of remarks by (kind, name).
        streams: the stream on which the present op runs.
        source_lines: the user's lines that ops come from.
        communicators: groups of ranks, by the number that an `OpLine.exchange` has.
        asked: values of the GPU that the script read other than its `Facts`, such as "name".
        begins: called before the first storage.
        replayed: called when a CUDA graph is replayed.
        allocated_bytes: bytes of live blocks, rounded up as the allocator does.
        peak_bytes: the most of them so far.
    """

    def __init__(self) -> None:
        self.ops: list[OpLine] = []
        self.storages: list[StorageLine] = []
        self.events: list[tuple[int, int, int]] = []
        self.saves: list[SaveDraft] = []
        self.empties: list[int] = []
        self.bounds: dict[int, tuple[int, int]] = {}
        self.parts: list[Part] = []
        self._part_begin = 0
        self.remarks: dict[tuple[RemarkKind, str], int] = {}
        self.streams = VirtualStreams()
        self.source_lines = SourceLines()
        self.communicators: list[Communicator] = []
        self.asked: set[str] = set()
        self.begins: Callable[[], None] | None = None
        self.replayed: Callable[[], None] | None = None
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self._lock = threading.RLock()  # a free may come while an allocation is noted, in the same thread too
        self._live: dict[int, _StorageWatch] = {}
        self._emptied: dict[int, int] = {}

    def alloc(self, tensor: torch.Tensor, category: Category = "temporary") -> int | None:
        """Note the storages of a new tensor; known and empty ones are skipped, and files that are not trained."""
        if is_wrapper(tensor) or tensor.layout is not torch.strided:
            for part in _with_bytes(tensor):
                self.alloc(part, category)
            return None
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._live or takes_no_memory(tensor):
            return None
        size_bytes = storage.nbytes()
        if not size_bytes:
            return None
        number = self.scratch(size_bytes, category, str(tensor.dtype)[6:])
        self.adopt(storage, number)
        return number

    def met(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the storages of tensors that were made before the device was looked at, or elsewhere."""
        for tensor in tensors:
            if not isinstance(tensor, UninitializedTensorMixin):
                self.alloc(unwrapped(tensor))  # a transform of torch.func calls modules with tensors of its own

    def adopt(self, storage: torch.UntypedStorage, number: int) -> None:
        """Note the end of a storage that was noted under this number."""
        watch = _StorageWatch(storage, self._died)
        watch.key, watch.number = storage_key(storage), number
        self._live[watch.key] = watch

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Note that a storage has another size now, which is another block; FSDP frees weights like this.

        A freed storage has the same category when it is allocated again.
        """
        key, size_bytes = storage_key(storage), storage.nbytes()
        watch = self._live.pop(key, None)
        if watch is not None:
            self._emptied[key] = watch.number
        if size_bytes and key in self._emptied:
            line = self.storages[self._emptied.pop(key)]
            self.adopt(storage, self.scratch(size_bytes, line.category, line.dtype))
        if watch is not None:
            self.release(watch.number)

    def grown(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note tensors whose storages are larger than before."""
        for tensor in tensors:
            number, storage = self.number_of(tensor), tensor.untyped_storage()
            if number is not None and storage.nbytes() != self.storages[number].size_bytes:
                self.resized(storage)

    def scratch(self, size_bytes: int, category: Category, dtype: str = "") -> int:
        """Note a storage that no tensor is on; `release` ends it."""
        if self.begins is not None:
            begins, self.begins = self.begins, None
            begins()
        with self._lock:
            number = len(self.storages)
            self.storages.append(StorageLine(size_bytes, category, dtype, self.streams.now()))
            self.events.append((len(self.ops) - 1, number, size_bytes))
            self.allocated_bytes += -size_bytes // BLOCK_BYTES * -BLOCK_BYTES
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return number

    def release(self, number: int) -> None:
        """Note that a storage is given back."""
        size_bytes = self.storages[number].size_bytes
        with self._lock:
            self.events.append((len(self.ops) - 1, number, -size_bytes))
            self.allocated_bytes -= -size_bytes // BLOCK_BYTES * -BLOCK_BYTES

    def empty_cache(self) -> None:
        """Note that the allocator gives its cache back to the driver here."""
        if self.events and self.empties[-1:] != [len(self.events)]:
            self.empties.append(len(self.events))

    def forget_end(self, first_op: int, end_op: int) -> None:
        """Forget what a script lets go as it ends, right after its last step: what was there before that step.

        Another step would find it there. In the trace it stays to the end.

        Args:
            first_op: first op of the step.
            end_op: the op after its last one.
        """
        early = {storage for op, storage, size_bytes in self.events if size_bytes > 0 and op < first_op}
        kept = [op != end_op - 1 or size_bytes > 0 or storage not in early for op, storage, size_bytes in self.events]
        places = [0, *accumulate(kept)]
        self.empties = [places[place] for place in self.empties]
        self.events = [event for event, is_kept in zip(self.events, kept, strict=True) if is_kept]

    def _died(self, watch: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watch, _StorageWatch)
        if self._live.get(watch.key) is watch:
            del self._live[watch.key]
        self.release(watch.number)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's storage; None if it is not on the device."""
        tensor = unwrapped(tensor)
        if isinstance(tensor, UninitializedTensorMixin) or tensor.layout is not torch.strided:
            return None
        watch = self._live.get(storage_key(tensor.untyped_storage()))
        return None if watch is None else watch.number

    def numbers_of(self, tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Return the numbers of the storages of tensors on the device, each once."""
        found = (self.number_of(tensor) for tensor in tensors)
        return tuple(dict.fromkeys(number for number in found if number is not None))

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is on the device."""
        return storage_key(storage) in self._live

    def live(self) -> set[int]:
        """Numbers of the storages that tensors are on."""
        return {watch.number for watch in self._live.values()}

    def are_live(self, numbers: frozenset[int]) -> bool:
        """Whether tensors are on all of these storages."""
        return numbers <= self.live()

    def classify(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Set the category of storages."""
        for tensor in tensors:
            for part in _with_bytes(tensor):
                number = self.number_of(part)
                if number is not None:
                    self.storages[number].category = category

    def part_begins(self) -> None:
        """Note that a part of an optimizer's step, or an accumulation, begins."""
        self._part_begin = len(self.ops)

    def part_ends(
        self,
        states: Iterable[torch.Tensor],
        least_bytes: int,
        kind: PartKind = "optimizer",
        gradients: Iterable[int] = (),
    ) -> None:
        """Note that a part ends, and the states or the gradient it needed on the device; smaller ones never leave.

        Args:
            states: the states of the part, or the gradient of an accumulation.
            least_bytes: the least size of what may leave.
            kind: kind of the part.
            gradients: the gradients that a part is the last to use.
        """
        large = tuple(n for n in self.numbers_of(states) if self.storages[n].size_bytes >= least_bytes)
        all_of_it = tuple(dict.fromkeys((*large, *gradients)))
        self.parts.append(Part(first_op=self._part_begin, end_op=len(self.ops), storages=all_of_it, kind=kind))

    def drop_parts_of(self, number: int) -> None:
        """Drop the accumulations of a gradient, as it does not leave."""
        self.parts = [part for part in self.parts if part.kind == "optimizer" or number not in part.storages]
        self.is_read_later(number)

    def is_read_later(self, number: int) -> None:
        """Note that a gradient does not leave after its part."""
        self.parts = [
            replace(part, storages=tuple(s for s in part.storages if s != number))
            if part.kind == "optimizer" and number in part.storages
            else part
            for part in self.parts
        ]

    def remark(self, kind: RemarkKind, name: str) -> None:
        """Count a fact that is not known or was assumed."""
        self.remarks[kind, name] = self.remarks.get((kind, name), 0) + 1

    def close(self) -> None:
        """Stop watching: storages that die from here on are not recorded."""
        self._live.clear()


def _with_bytes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that have the bytes of a tensor."""
    for part in parts_of(tensor):
        yield from (part,) if part.layout is torch.strided else sparse.with_bytes(part)
