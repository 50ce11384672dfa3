"""Staging: host memory that pieces of storages pass through, between a device with streams and the disk.

Threads ask for room, and wait until there is some. Room is freed when its last use ends: a piece is on the disk, or the
stream has made the copy that reads it. Neither needs more room to go on, so each thread that waits gets room in the
end.
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
"""Largest size of a piece: large enough for the disk's full rate, and small compared with host memory."""
LOOK_S = 0.0005
"""Seconds between two looks of a thread that waits for room at the copies made so far."""


@final
class StagingRoom:
    """Memory of one piece.

    Attributes:
        slot: its slot in an arena.
        uses: number of uses that need its bytes: the write to the disk, and each copy back.
    """

    __slots__ = ("slot", "uses")

    def __init__(self, slot: ArenaSlot) -> None:
        self.slot = slot
        self.uses = 1


@final
class Staging:
    """Rooms for pieces, in arenas of their own.

    Args:
        arenas: the memory, used by nothing else.
        streams: streams of the device.
    """

    def __init__(self, arenas: Arenas, streams: Streams) -> None:
        self.arenas = arenas
        self._streams = streams
        self._changed = threading.Condition()
        self._passing: deque[tuple[Any, StagingRoom]] = deque()

    def take_now(self, size_bytes: int) -> StagingRoom | None:
        """Return room for a piece, with one use; None if there is none now."""
        with self._changed, suppress(TierError):
            return self._take(size_bytes)
        return None

    def take(self, size_bytes: int) -> StagingRoom:
        """Return room for a piece; waits if there is none now. Raises TierFull if the computer has none at all."""
        with self._changed:
            while (room := self._take(size_bytes)) is None:
                self._changed.wait(LOOK_S)
            return room

    def use(self, room: StagingRoom) -> None:
        """Add a use of its bytes."""
        with self._changed:
            room.uses += 1

    def done(self, room: StagingRoom) -> None:
        """End a use of its bytes."""
        with self._changed:
            self._done(room)

    def done_at(self, room: StagingRoom, mark: Any) -> None:
        """End a use of its bytes once a stream has reached a mark."""
        with self._changed:
            self._passing.append((mark, room))

    def settle(self) -> None:
        """Wait until all uses have ended."""
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
        """Resize the memory to exactly this size. No copy may be under way."""
        with self._changed:
            self.arenas.fit(size_bytes)

    def _take(self, size_bytes: int) -> StagingRoom | None:
        self._look()
        slot = self.arenas.try_reserve(size_bytes)
        return None if slot is None else StagingRoom(slot)

    def _look(self) -> None:
        """End the uses of copies that their streams have made by now."""
        while self._passing and self._streams.reached(self._passing[0][0]):
            self._done(self._passing.popleft()[1])

    def _done(self, room: StagingRoom) -> None:
        room.uses -= 1
        if not room.uses:
            self.arenas.release(room.slot)
            self._changed.notify_all()
