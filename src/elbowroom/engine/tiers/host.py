"""Host tier of a device with streams: the device makes the copies itself, in order, while it computes.

Note: [Streams]
Compute, copies out and copies back are three queues of the device. The host enqueues work far ahead of the device, so
this code never asks how far the device is. Each order that matters is a wait of one queue for a mark in another:

- A copy out waits for all work that the storage's own stream has been given so far: its bytes are there then.
- When the schedule says that a write must have ended, that stream waits for the copy. Only then the storage is freed.
  The allocator gives its memory to later work of that stream, which begins after the copy.
- A copy back waits for all work that that stream has been given so far. The new storage may lie where earlier work
  still reads. The copy out comes before it too.
- A reader's stream waits for the copy back. If nobody reads the storage, its own stream waits.

The storage's own stream is the one that was current when autograd saved it. Code that shares a storage with other
streams has to call torch's `record_stream`. So the bytes on the device follow from the order of the host's calls alone.
Freed memory can be used at once.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, cast, final

import torch

from elbowroom.engine.tiers.arenas import Arenas, ArenaSlot
from elbowroom.engine.tiers.base import LentSlot, LowerTier, Slot, Transfer
from elbowroom.engine.tiers.streams import Streams
from elbowroom.errors import UsageError
from elbowroom.machine import TierName


class StreamCopy(Transfer):
    """Copy in a stream. The host does not know when it ends: it is `done` once the storage's stream waits for it.

    Args:
        streams: streams of the device.
        lane: the stream of the copy.
        slot: its room on the host.
        begin: mark before it; None if times are not wanted.
        end: mark behind it.
    """

    blocks = False

    def __init__(self, streams: Streams, lane: Hashable, slot: Slot, begin: Any, end: Any) -> None:
        self.size_bytes = slot.size_bytes
        self.start_ns = self.end_ns = time.perf_counter_ns()
        self._streams = streams
        self._lane = lane
        self._home = slot.home
        self._begin = begin
        self._end = end
        self._waited_for = False

    def done(self) -> bool:
        return self._waited_for

    def wait(self) -> None:
        if not self._waited_for:
            self._waited_for = True
            if self._begin is None:
                self._streams.wait_last(self._home, self._end, self._lane)
            else:
                self._streams.wait(self._home, self._end)

    @abstractmethod
    def abandon(self) -> None: ...

    def times(self) -> tuple[int, int]:
        if self._begin is None:
            return self.start_ns, self.end_ns
        return self._streams.time_ns(self._begin), self._streams.time_ns(self._end)


@final
class CopyOut(StreamCopy):
    """Copy to the host."""

    def abandon(self) -> None:
        # The copy goes on. What it reads may be changed, and what it writes is not used: later copies to the same place
        # come after it, on the same stream.
        self._waited_for = True


@final
class CopyBack(StreamCopy):
    """Copy from the host."""

    def abandon(self) -> None:
        self.wait()  # its storage is about to be freed, and later work of this stream may get the memory

    def used(self, storage: torch.UntypedStorage) -> None:
        reader = self._streams.current()
        if reader is not self._home:
            self._streams.wait(reader, self._end)
            self._streams.used(storage, reader)


@final
class StreamedHostTier(LowerTier):
    """Host memory below a device with streams. See Note: [Streams].

    Args:
        streams: streams of the device.
        arenas: the host memory.
    """

    name: TierName = "host"
    streams: Streams

    def __init__(self, streams: Streams, arenas: Arenas) -> None:
        self.streams = streams
        self.arenas = arenas
        self._read_from: dict[int, tuple[Hashable, Any]] = {}

    def home(self) -> Hashable:
        current = self.streams.current()
        if self.streams.capturing(current):
            raise UsageError(
                "within: given a step that is captured as a CUDA graph; allowed are steps that run: a graph replays "
                "the copies of its capture, to places that others have by then. Capture before `within`, or train "
                "without the graph"
            )
        return current

    @property
    def pinned_bytes(self) -> int:
        return self.arenas.pinned_bytes

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:  # noqa: ARG002 - there is one
        return self.arenas.reserve(size_bytes)

    def release(self, slot: Slot) -> None:
        if not isinstance(slot, LentSlot):
            self.arenas.release(cast("ArenaSlot", slot))

    def lend(self, slot: Slot, *, from_disk: bool = False) -> LentSlot:  # noqa: ARG002 - it has no disk
        self.streams.finish()  # copies from and to the slot
        memory = cast("ArenaSlot", slot).memory.clone()
        self.release(slot)
        return LentSlot(memory.untyped_storage(), slot.home)

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        streams, own = self.streams, id(slot.home)
        room: Any = slot
        for home, (_, mark) in self._read_from.items():
            if home != own:  # another stream may have used the slot before, and its copy back may be under way
                streams.wait(streams.out, mark)
        copy = slot.home, room.address, storage.data_ptr(), slot.size_bytes, streams.out
        begin, end = self._timed_copy(*copy) if self.timed else (None, streams.copy_behind(*copy))
        return CopyOut(streams, streams.out, slot, begin, end)

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        storage = self.streams.new_storage(slot.size_bytes, slot.home)
        return storage, self._copy_back(slot, storage)

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        self.resize(storage, slot.size_bytes, slot.home)
        return self._copy_back(slot, storage)

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, home: Hashable) -> None:
        self.streams.resize(storage, size_bytes, home)

    def _copy_back(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        streams = self.streams
        room: Any = slot
        copy = slot.home, storage.data_ptr(), room.address, slot.size_bytes, streams.back
        begin, end = self._timed_copy(*copy) if self.timed else (None, streams.copy_behind(*copy))
        self._read_from[id(slot.home)] = slot.home, end
        return CopyBack(streams, streams.back, slot, begin, end)

    def _timed_copy(self, home: Hashable, target: int, source: int, size_bytes: int, lane: Hashable) -> tuple[Any, Any]:
        """Enqueue a copy as `copy_behind` does, and return the marks before and behind it."""
        streams = self.streams
        streams.wait(lane, streams.mark(home))
        begin = streams.mark(lane, timed=True)
        streams.copy(target, source, size_bytes, lane)
        return begin, streams.mark(lane, timed=True)

    @property
    def held_bytes(self) -> int:
        return self.arenas.held_bytes

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:
        """Resize the memory to this size, and keep what is held. Blocks until all copies are done."""
        self.streams.finish()
        self.arenas.fit(held_bytes.get("host", 0))

    def close(self) -> None:
        self.streams.finish()
        self._read_from.clear()
        self.arenas.drop()
