"""Transfers through staging memory on the host: storages move to and from the disk piece by piece.

Note: [Threads and storages]
A thread touches a storage of the device only while it holds the lock of its transfer. It never does so after the
transfer was given up, has failed or is enqueued. So the training's thread drops the last reference to a storage, at a
tick.
"""

from __future__ import annotations

import threading
import time
from typing import Any, final

import torch

from elbowroom.engine.tiers.base import Hop, Slot, Transfer
from elbowroom.engine.tiers.staging import StagingRoom
from elbowroom.engine.tiers.streams import Streams


@final
class DiskPiece:
    """Piece of a storage.

    Attributes:
        start, size_bytes: its range in the storage.
        offset: its offset in the file.
        room: staging memory that has its bytes; None if there is none.
    """

    __slots__ = ("offset", "room", "size_bytes", "start")

    def __init__(self, start: int, size_bytes: int, offset: int) -> None:
        self.start = start
        self.size_bytes = size_bytes
        self.offset = offset
        self.room: StagingRoom | None = None


@final
class DiskSlot(Slot):
    """Room for one storage in the file.

    Attributes:
        within: the file's own slot.
        pieces: the pieces of the storage.
        busy: number of writes and reads of the file that have not ended.
        released: whether the bytes are not needed any more.
    """

    __slots__ = ("busy", "pieces", "released", "within")

    def __init__(self, within: Slot, piece_bytes: int) -> None:
        super().__init__(within.offset, within.size_bytes)
        self.within = within
        size, starts = within.size_bytes, range(0, within.size_bytes, piece_bytes)
        self.pieces = [DiskPiece(start, min(piece_bytes, size - start), within.offset + start) for start in starts]
        self.busy = 0
        self.released = False


class Staged(Transfer):
    """Transfer of one storage by two hops. Like a StreamCopy, it is `done` once the storage's own stream waits for it.

    Args:
        streams: streams of the device.
        slot: its room on the disk.
        storage: the device storage.
        ready: mark in its stream before which no copy may begin.
        lane: the stream of its copies.
        timed: whether its copies must record their times.
    """

    def __init__(
        self, streams: Streams, slot: DiskSlot, storage: torch.UntypedStorage, ready: Any, lane: Any, *, timed: bool
    ) -> None:
        super().__init__(slot.size_bytes)
        self.start_ns = self.end_ns = time.perf_counter_ns()
        self.slot = slot
        self.lock = threading.Lock()
        self.given_up = False
        self._streams, self._storage, self._ready, self._lane, self._timed = streams, storage, ready, lane, timed
        self._enqueued = threading.Event()
        self._left = len(slot.pieces)
        self._begin: Any = None
        self._end: Any = None
        self._waited_for = False
        self._hops: list[Hop] = []

    def copy(self, piece: DiskPiece, room: StagingRoom, *, out: bool) -> Any:
        """Enqueue the copy of one piece. Returns the mark behind it; None if the transfer was given up or failed."""
        with self.lock:
            if self._storage is None:
                return None
            mark = self._copy(piece, room, out=out)
            self._one_less()
            return mark

    def _copy(self, piece: DiskPiece, room: StagingRoom, *, out: bool) -> Any:
        streams = self._streams
        if self._end is None:
            streams.wait(self._lane, self._ready)
            self._begin = streams.mark(self._lane, timed=True) if self._timed else None
        assert self._storage is not None, "it is dropped when the last piece was copied"
        there, here = self._storage.data_ptr() + piece.start, room.slot.address
        streams.copy(*((here, there) if out else (there, here)), piece.size_bytes, self._lane)
        self._end = streams.mark(self._lane, timed=self._timed)
        return self._end

    def fail(self, error: Exception) -> None:
        """Note the error of a piece that could not be moved."""
        with self.lock:
            self.error, self._storage = self.error or error, None
            self._enqueued.set()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._storage = None
            self._enqueued.set()

    def moved(self, kind: str, start_ns: int, size_bytes: int) -> None:
        """Note a piece that went to the disk or came from it."""
        self._hops.append(Hop(kind, start_ns, time.perf_counter_ns(), size_bytes))

    def done(self) -> bool:
        return self._waited_for

    def wait(self) -> None:
        if not self._waited_for:
            self._enqueued.wait()
            self._now()

    def _now(self) -> None:
        """Make the storage's stream wait for all copies so far."""
        self._waited_for = True
        if self._end is not None:
            self._streams.wait(self.slot.home, self._end)

    def _give_up(self) -> None:
        with self.lock:
            self.given_up, self._storage = True, None
            self._enqueued.set()

    def abandon(self) -> None:
        self._give_up()
        self._waited_for = True

    def hops(self) -> list[Hop]:
        return list(self._hops)

    def times(self) -> tuple[int, int]:
        if self._begin is None:
            return self.start_ns, self.end_ns
        return self._streams.time_ns(self._begin), self._streams.time_ns(self._end)


@final
class StagedOut(Staged):
    """Transfer to the disk."""


@final
class StagedBack(Staged):
    """Transfer from the disk."""

    def abandon(self) -> None:
        self._give_up()
        self._now()  # its storage is about to be freed, and later work of its stream may get the memory

    def used(self, storage: torch.UntypedStorage) -> None:
        reader = self._streams.current()
        if reader is not self.slot.home and self._end is not None:
            self._streams.wait(reader, self._end)
            self._streams.used(storage, reader)
