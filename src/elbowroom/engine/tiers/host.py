"""The host tier of a device with streams: copies that the device makes by itself, in order, while it computes.

Note: [Streams]
Compute, copies out and copies back are three queues of the device. The host hands out work far ahead of it, so nothing
here asks how far the device is; each order that matters becomes a wait of one queue for a mark in another:

- a copy out waits for what the storage's own stream has been given so far: its bytes are there then;
- where the schedule says that a write must have ended, that stream waits for the copy. Only then the storage is let go
  of: the allocator gives its memory to later work of that stream, which begins after the copy;
- a copy back waits for what that stream has been given so far: the new storage may lie where its earlier work still
  reads, and the copy out lies before it;
- a reader's stream waits for the copy back. So does the storage's own stream where nobody reads it.

The storage's own stream is the one that was current when autograd saved it. Memory that a storage shares with other
streams is torch's own affair, by `record_stream` of whoever shares it. So the bytes on the device follow from the order
of the host's calls alone, and the memory that is freed can be used at once.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, cast, final

import torch

from elbowroom.engine.tiers.arenas import Arenas, ArenaSlot
from elbowroom.engine.tiers.base import LowerTier, Slot, Transfer
from elbowroom.engine.tiers.streams import Streams
from elbowroom.errors import UsageError
from elbowroom.machine import TierName


class StreamCopy(Transfer):
    """A copy in a stream. Nobody on the host knows when it ends: it is `done` once the storage's stream waits for it.

    Args:
        streams: of the device.
        lane: its stream.
        slot: its room on the host.
        begin: mark before it, None where times are not wanted.
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
    """A copy to the host."""

    def abandon(self) -> None:
        # It is under way and stays so. What it reads may be changed and what it writes is not looked at: later copies
        # to the same place come after it, on the same stream.
        self._waited_for = True


@final
class CopyBack(StreamCopy):
    """A copy from the host."""

    def abandon(self) -> None:
        self.wait()  # its storage is about to be freed, for later work of this stream

    def used(self, storage: torch.UntypedStorage) -> None:
        reader = self._streams.current()
        if reader is not self._home:
            self._streams.wait(reader, self._end)
            self._streams.used(storage, reader)


@final
class StreamedHostTier(LowerTier):
    """Host memory below a device with streams. See Note: [Streams].

    Args:
        streams: of the device.
        arenas: the memory.
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
        self.arenas.release(cast("ArenaSlot", slot))

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        streams, own = self.streams, id(slot.home)
        room: Any = slot
        for home, (_, mark) in self._read_from.items():
            if home != own:  # the room may be another stream's of before, and its copy back still under way
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
        """As `copy_behind`, with a mark before it too."""
        streams = self.streams
        streams.wait(lane, streams.mark(home))
        begin = streams.mark(lane, timed=True)
        streams.copy(target, source, size_bytes, lane)
        return begin, streams.mark(lane, timed=True)

    @property
    def held_bytes(self) -> int:
        return self.arenas.held_bytes

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:
        """Have memory of this size and no more, with what lies there now; blocks until all copies are done."""
        self.streams.finish()
        self.arenas.fit(held_bytes.get("host", 0))

    def close(self) -> None:
        self.streams.finish()
        self._read_from.clear()
        self.arenas.drop()
