"""Host tier below a device with streams, with the disk below for what the plan says or the host cannot hold.

Note: [Two hops]
A storage that goes to the disk passes through staging memory on the host, in pieces. Out: the device copies a piece in
the stream of the host tier, then a thread writes it. Back: a thread reads a piece, then the device copies it. Device
memory follows the same rules as for the host tier (Note: [Streams] in host.py). It is freed behind the copy out, for
which the storage's stream waits. It is taken at the tick at which the swap back starts. So the bytes on the device do
not depend on the disk.

The host's time does: a copy that waits for staging memory, or for the disk, is not in its stream yet. Code that needs
the mark behind it blocks the host until then. A piece that is not written yet when its storage is wanted back is copied
back from staging memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast, final

import torch

from elbowroom.engine.tiers.arenas import ArenaSlot
from elbowroom.engine.tiers.base import Transfer
from elbowroom.engine.tiers.disk import lane
from elbowroom.engine.tiers.disk_pieces import DiskPiece, DiskSlot, StagedBack, StagedOut
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.lower_tiers import BelowDevice, translated
from elbowroom.engine.tiers.ranges import PAGE_BYTES, whole_pages
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.staging import PIECE_BYTES, Staging, StagingRoom
from elbowroom.errors import TierFull
from elbowroom.machine import TierName
from elbowroom.units import format_bytes

SHARE = 4
STAGING_BYTES = 16 * PIECE_BYTES
"""Staging memory before a plan says how much; at most 1/SHARE of the host's budget."""
LEAST_STAGING_BYTES = 2 * PAGE_BYTES
"""Least staging memory: one piece comes while another goes."""


@final
class StagedTier(BelowDevice):
    """Host tier, and the disk tier below it. See Note: [Two hops].

    Args:
        host: the tier of what stays on the host.
        staging: memory for pieces on their way.
        open_file: makes the spill file at the first need; raises TierFull, TierFailed.
    """

    def __init__(self, host: StreamedHostTier, staging: Staging, open_file: Callable[[], SpillFile]) -> None:
        super().__init__(host)
        self._staging = staging
        self._open_file = open_file
        self._copying = 0
        self._divide(min(STAGING_BYTES, self.budget_bytes // SHARE))

    @property
    def size_bytes(self) -> int:
        return self.host.arenas.size_bytes + self._staging.arenas.size_bytes

    @property
    def pinned_bytes(self) -> int:
        return self.host.pinned_bytes + self._staging.arenas.pinned_bytes

    def _on_disk(self, size_bytes: int, full: TierFull | None) -> DiskSlot:
        room_bytes = self._staging.arenas.budget_bytes
        if room_bytes < LEAST_STAGING_BYTES:
            raise full or _no_staging(room_bytes)
        return super()._on_disk(size_bytes, full)

    def _room_on_disk(self, size_bytes: int) -> DiskSlot:
        if self._file is None:
            self._file = self._open_file()
            self._lanes = [lane("elbowroom-copy", 1), lane("elbowroom-write", 2), lane("elbowroom-read", 2)]
        room_bytes = self._staging.arenas.budget_bytes
        return DiskSlot(self._file.reserve(size_bytes), min(PIECE_BYTES, room_bytes // 2 // PAGE_BYTES * PAGE_BYTES))

    # Out

    def _leave(self, storage: torch.UntypedStorage, slot: DiskSlot) -> Transfer:
        streams = self.streams
        ready = streams.mark(slot.home)
        transfer = StagedOut(streams, slot, storage, ready, streams.out, timed=self.timed)
        with self._lock:
            slot.busy += len(slot.pieces)
            first = self._copying == 0
            self._copying += 1
        done = 0
        while first and done < len(slot.pieces) and (room := self._staging.take_now(slot.pieces[done].size_bytes)):
            self._copy_out(transfer, slot.pieces[done], room)
            done += 1
        if done < len(slot.pieces):
            self._lanes[0].submit(self._copy_rest, transfer, done)
        else:
            self._copied()
        return transfer

    def _copied(self) -> None:
        with self._lock:
            self._copying -= 1

    def _copy_rest(self, transfer: StagedOut, done: int) -> None:
        """Copy, on a thread, the pieces for which there was no staging memory at once."""
        for piece in transfer.slot.pieces[done:]:
            if transfer.given_up:
                self._no_longer_busy(transfer.slot)
                continue
            try:
                room = self._staging.take(piece.size_bytes)
            except Exception as error:  # noqa: BLE001 - raised on the thread that waits
                transfer.fail(error)
                self._no_longer_busy(transfer.slot)
            else:
                self._copy_out(transfer, piece, room)
        self._copied()

    def _copy_out(self, transfer: StagedOut, piece: DiskPiece, room: StagingRoom) -> None:
        piece.room = room  # set before the copy, as the piece may be wanted back at any time after it
        mark = _copied(transfer, piece, room, out=True)
        if mark is None:
            piece.room = None
            self._staging.done(room)
            self._no_longer_busy(transfer.slot)
        else:
            self._lanes[1].submit(self._write_piece, transfer, piece, room, mark)

    def _write_piece(self, transfer: StagedOut, piece: DiskPiece, room: StagingRoom, mark: Any) -> None:
        """Write a piece, on a thread, once the device has copied it."""
        assert self._file is not None, "the lanes come after the file"
        try:
            self.streams.until(mark)
            if not transfer.given_up and not transfer.slot.released:
                start_ns = time.perf_counter_ns()
                self._file.check()
                self._file.write(_in_pages(room.slot), piece.offset)
                transfer.moved("disk_write", start_ns, piece.size_bytes)
        except Exception as error:  # noqa: BLE001 - raised at the next tick
            self._error = self._error or translated(self._file, "writing", error)
        with self._lock:
            piece.room = None
        self._staging.done(room)
        self._no_longer_busy(transfer.slot)

    # Back

    def _bring(self, slot: DiskSlot, storage: torch.UntypedStorage) -> Transfer:
        streams = self.streams
        transfer = StagedBack(streams, slot, storage, streams.mark(slot.home), streams.back, timed=self.timed)
        for piece in slot.pieces:
            with self._lock:
                room = piece.room
                if room is None:
                    slot.busy += 1
                else:
                    self._staging.use(room)
            if room is None:
                self._lanes[2].submit(self._read_piece, transfer, piece)
            else:
                self._copy_back(transfer, piece, room)
        return transfer

    def _read_piece(self, transfer: StagedBack, piece: DiskPiece) -> None:
        """Read a piece, on a thread, and enqueue its copy to the device."""
        assert self._file is not None, "what is on the disk is in the file"
        room: StagingRoom | None = None
        try:
            if not transfer.given_up:
                room = self._staging.take(piece.size_bytes)
                start_ns = time.perf_counter_ns()
                self._file.check()
                self._file.read(_in_pages(room.slot), piece.offset)
                transfer.moved("disk_read", start_ns, piece.size_bytes)
        except Exception as error:  # noqa: BLE001 - raised on the thread that waits
            transfer.fail(translated(self._file, "reading", error))
        if room is not None:
            self._copy_back(transfer, piece, room)
        self._no_longer_busy(transfer.slot)

    def _copy_back(self, transfer: StagedBack, piece: DiskPiece, room: StagingRoom) -> None:
        mark = _copied(transfer, piece, room, out=False)
        if mark is None:
            self._staging.done(room)
        else:
            self._staging.done_at(room, mark)

    # Sizes and end

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:
        self.streams.finish()
        self._staging.settle()
        host, disk = held_bytes.get("host", 0), held_bytes.get("disk", 0)
        goes_on = max(0, host - self.budget_bytes)  # what the host cannot hold
        if goes_on:
            disk, host = disk + goes_on, self.budget_bytes - min(STAGING_BYTES, self.budget_bytes // SHARE)
        self._divide(max(0, min(disk or STAGING_BYTES, self.budget_bytes - host)))
        if not self.host.arenas.held_bytes:
            self.host.arenas.drop()
        self._staging.fit(self._staging.arenas.budget_bytes if disk else 0)
        self.host.fit(held_bytes)

    def _divide(self, staging_bytes: int) -> None:
        """Divide the budgets between staging memory and what stays on the host."""
        pinned = min(staging_bytes, self.pinned_budget_bytes)
        staged, stays = self._staging.arenas, self.host.arenas
        staged.budget_bytes, staged.pinned_budget_bytes = staging_bytes, pinned
        stays.budget_bytes = self.budget_bytes - staging_bytes
        stays.pinned_budget_bytes = min(stays.budget_bytes, self.pinned_budget_bytes - pinned)

    def close(self) -> None:
        super().close()
        self._staging.drop()


def _copied(transfer: StagedOut | StagedBack, piece: DiskPiece, room: StagingRoom, *, out: bool) -> Any:
    """Enqueue a piece's copy, and return the mark behind it; None if the transfer was given up or failed."""
    try:
        return transfer.copy(piece, room, out=out)
    except Exception as error:  # noqa: BLE001 - raised on the thread that waits
        transfer.fail(error)
        return None


def _in_pages(slot: ArenaSlot) -> memoryview:
    """Return the memory of a slot up to the end of its last page, as arenas hand out whole pages."""
    whole = slot.arena.memory[slot.offset : slot.offset + whole_pages(slot.size_bytes)]
    return memoryview(cast("Any", whole.numpy()))


def _no_staging(room_bytes: int) -> TierFull:
    return TierFull(
        f"host tier: its budget leaves {format_bytes(room_bytes)} for storages on their way to the disk, and "
        f"{format_bytes(LEAST_STAGING_BYTES)} are the least; raise it (host=...)",
        tier="host",
    )
