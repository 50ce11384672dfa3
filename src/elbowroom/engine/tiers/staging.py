"""Staging: host memory that pieces of storages pass through on their way between a device with streams and the disk.

Room is asked for by threads, which wait until there is some. It comes back when nobody uses it any more: once a piece
is on the disk, or once the copy that reads it has been reached by its stream. Neither needs room to go on, so whoever
waits for room gets it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any, final

from elbowroom.engine.tiers.arenas import Arenas, ArenaSlot
from elbowroom.engine.tiers.streams import Streams
from elbowroom.errors import TierError

PIECE_BYTES = 8 << 20
"""A storage passes in pieces of at most so many bytes: large enough for the disk's full rate, small beside the host."""
LOOK_S = 0.0005
"""How often a thread that waits for room looks which copies have been made."""


@final
class StagingRoom:
    """Memory of one piece.

    Attributes:
        slot: where it is.
        uses: who needs its bytes: the write to the disk, each copy back.
    """

    __slots__ = ("slot", "uses")

    def __init__(self, slot: ArenaSlot) -> None:
        self.slot = slot
        self.uses = 1


@final
class Staging:
    """Rooms in arenas of their own.

    Args:
        arenas: the memory; nobody else may use them.
        streams: of the device.
    """

    def __init__(self, arenas: Arenas, streams: Streams) -> None:
        self.arenas = arenas
        self._streams = streams
        self._changed = threading.Condition()
        self._passing: deque[tuple[Any, StagingRoom]] = deque()

    def take_now(self, size_bytes: int) -> StagingRoom | None:
        """Room for a piece, with one use; None where there is none now."""
        with self._changed, suppress(TierError):
            return self._take(size_bytes)
        return None

    def take(self, size_bytes: int) -> StagingRoom:
        """Room for a piece, waited for where there is none now. Raises TierFull where the computer has none at all."""
        with self._changed:
            while (room := self._take(size_bytes)) is None:
                self._changed.wait(LOOK_S)
            return room

    def use(self, room: StagingRoom) -> None:
        """One more needs its bytes."""
        with self._changed:
            room.uses += 1

    def done(self, room: StagingRoom) -> None:
        """One less needs its bytes."""
        with self._changed:
            self._done(room)

    def done_at(self, room: StagingRoom, mark: Any) -> None:
        """One less needs its bytes once a stream has reached a mark."""
        with self._changed:
            self._passing.append((mark, room))

    def settle(self) -> None:
        """Wait until nobody needs any of it."""
        with self._changed:
            while self._passing or self.arenas.held_bytes:
                self._changed.wait(LOOK_S)
                self._look()

    def drop(self) -> None:
        """Give the memory back to the system. No copy may be under way."""
        with self._changed:
            self._look()
            self.arenas.drop()

    def fit(self, size_bytes: int) -> None:
        """Have memory of this size and no more. No copy may be under way."""
        with self._changed:
            self.arenas.fit(size_bytes)

    def _take(self, size_bytes: int) -> StagingRoom | None:
        self._look()
        slot = self.arenas.try_reserve(size_bytes)
        return None if slot is None else StagingRoom(slot)

    def _look(self) -> None:
        """Take back what copies that have been made were the last to need."""
        while self._passing and self._streams.reached(self._passing[0][0]):
            self._done(self._passing.popleft()[1])

    def _done(self, room: StagingRoom) -> None:
        room.uses -= 1
        if not room.uses:
            self.arenas.release(room.slot)
            self._changed.notify_all()
