"""The disk below a device with streams, without the host in between: GPUDirect Storage, by torch.cuda.gds.

Note: [Direct]
torch moves a storage between the device and a file on the calling thread, and knows no stream while it does. So a
thread does it, once the storage's stream has come as far as it had been given work when the move was asked for: the
bytes are there then, or the memory is free of earlier work. A stream cannot wait for a thread, so whoever needs a move
to have ended blocks the host until it has. The bytes on the device follow from the order of the host's calls, as with
copies: what has left is let go of where the schedule waits for it, however early it was through.

torch 2.11 to 2.13 hold Python's lock during a move, so that a storage goes in pieces between which the training gets
its turn. They raise where the driver reports an error and do not look at how many bytes it moved: room in the file is
reserved beforehand and its size checked before each piece, so that none comes up short for want of either. Buffers are
not registered with the driver, which is for memory that stays: storages come and go with each step.
Reference: "GPUDirect Storage, cuFile API Reference Guide" (NVIDIA), torch.cuda.gds (PyTorch documentation).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import torch

from elbowroom.engine.tiers.base import Transfer
from elbowroom.engine.tiers.disk import lane
from elbowroom.engine.tiers.disk_pieces import DiskSlot
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.lower_tiers import BelowDevice
from elbowroom.engine.tiers.ranges import PAGE_BYTES
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.streams import Streams
from elbowroom.errors import TierFailed
from elbowroom.machine import TierName
from elbowroom.notices import warn

DIRECT_PIECE_BYTES = 8 << 20
"""Moved at a time: a few milliseconds, in which no other thread of Python runs."""

Move = Callable[[torch.UntypedStorage, int], None]
"""Moves a piece of device memory to or from an offset in the file."""


@final
class DirectFile:
    """The spill file, as the driver of GPUDirect Storage has it open too.

    Args:
        file: private and without a name.
        opened: a torch.cuda.gds.GdsFile of it.
    """

    def __init__(self, file: SpillFile, opened: Any) -> None:
        self.file = file
        self._opened: Any = opened

    def write(self, piece: torch.UntypedStorage, offset: int) -> None:
        """Write a piece of device memory. Raises TierFailed."""
        self._do("writing", self._opened.save_storage, piece, offset)

    def read(self, piece: torch.UntypedStorage, offset: int) -> None:
        """Fill a piece of device memory. Raises TierFailed."""
        self._do("reading", self._opened.load_storage, piece, offset)

    def _do(self, doing: str, move: Move, piece: torch.UntypedStorage, offset: int) -> None:
        self.file.check()
        try:
            move(piece, offset)
        except Exception as error:  # torch raises what cuFile says as a RuntimeError
            raise self.file.failed(doing, error) from error

    def close(self) -> None:
        """Close both; with them the bytes are gone."""
        self._opened = None  # it has no method to close it
        self.file.close()


def open_direct(directory: str | None, capacity_bytes: int | None, device: torch.device) -> DirectFile | None:
    """The spill file for GPUDirect Storage; None, with a warning, where the machine does not offer that.

    A page is written and read back to see. Arguments as for SpillFile, whose errors it raises.
    """
    file = SpillFile(directory, capacity_bytes)
    try:
        if not file.direct:  # GdsFile would refuse it too, and then complain once more when it is taken apart
            raise ValueError("the file system refuses O_DIRECT")
        opened = torch.cuda.gds.GdsFile(f"/proc/self/fd/{file.descriptor}", os.O_RDWR)
        found = DirectFile(file, opened)
        _try_out(found, device)
    except Exception as error:  # noqa: BLE001 - whatever torch, cuFile, the driver or the file system say
        file.close()
        _say_refused(file.directory, error)
        return None
    return found


def _try_out(found: DirectFile, device: torch.device) -> None:
    content = torch.arange(PAGE_BYTES, dtype=torch.int64).to(torch.uint8)
    slot = found.file.reserve(PAGE_BYTES)
    written, read = content.to(device), torch.zeros_like(content).to(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    found.write(written.untyped_storage(), slot.offset)
    found.read(read.untyped_storage(), slot.offset)
    found.file.release(slot)
    if not torch.equal(read.cpu(), content):
        raise ValueError("what was read back is not what was written")


def _say_refused(directory: str, error: Exception) -> None:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    warn(
        f"elbowroom: GPUDirect Storage is not used in {directory} ({reason}): what goes to the disk passes through the "
        "host. It takes a file system and a driver that offer it; name another directory with spill_dir=, or leave "
        "gds out",
    )


class DirectMove(Transfer):
    """One storage on its way; `done` as a copy is, once somebody has waited for it.

    Args:
        storage: on the device.
        slot: its room in the file.
    """

    kind: str

    def __init__(self, storage: torch.UntypedStorage, slot: DiskSlot) -> None:
        super().__init__(slot.size_bytes)
        self.slot = slot
        self._storage: torch.UntypedStorage | None = storage
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._waited_for = False

    def run(self, move: Move) -> None:
        """On a thread: move the pieces, until somebody gives the storage up. See Note: [Threads and storages]."""
        for piece in self.slot.pieces:
            with self._lock:
                if self._storage is None:
                    return
                self.start_ns = self.start_ns or time.perf_counter_ns()
                move(self._storage[piece.start : piece.start + piece.size_bytes], piece.offset)

    def end(self, error: Exception | None = None) -> None:
        """It is through, well or not."""
        with self._lock:
            self.error, self._storage = self.error or error, None
            self.end_ns = time.perf_counter_ns()
            self._ended.set()

    def done(self) -> bool:
        return self._waited_for

    def wait(self) -> None:
        self._ended.wait()
        self._waited_for = True

    def abandon(self) -> None:
        self._waited_for = True
        with self._lock:  # a piece that is under way is through before the storage's memory can become another's
            self._storage = None
            self._ended.set()

    def on_lane(self, kind: str) -> str:  # noqa: ARG002 - the lanes of the device's copies have no part in it
        return self.kind


@final
class DirectOut(DirectMove):
    """To the disk."""

    kind = "disk_write"


@final
class DirectBack(DirectMove):
    """From the disk."""

    kind = "disk_read"

    def __init__(self, storage: torch.UntypedStorage, slot: DiskSlot, streams: Streams) -> None:
        super().__init__(storage, slot)
        self._streams = streams

    def used(self, storage: torch.UntypedStorage) -> None:
        reader = self._streams.current()
        if reader is not self.slot.home:
            self._streams.used(storage, reader)


@final
class DirectTier(BelowDevice):
    """The host tier, and the disk beside it. See Note: [Direct].

    Args:
        host: the tier of what stays on the host.
        direct: the file.
    """

    skips_host = True

    def __init__(self, host: StreamedHostTier, direct: DirectFile) -> None:
        super().__init__(host)
        self._direct, self._file = direct, direct.file
        try:
            self._lanes = [lane("elbowroom-write", 1), lane("elbowroom-read", 1)]
        except TierFailed:
            direct.close()
            raise

    def _room_on_disk(self, size_bytes: int) -> DiskSlot:
        return DiskSlot(self._direct.file.reserve(size_bytes), DIRECT_PIECE_BYTES)

    def _leave(self, storage: torch.UntypedStorage, slot: DiskSlot) -> Transfer:
        return self._started(DirectOut(storage, slot), 0, self._direct.write)

    def _bring(self, slot: DiskSlot, storage: torch.UntypedStorage) -> Transfer:
        return self._started(DirectBack(storage, slot, self.streams), 1, self._direct.read)

    def _started(self, transfer: DirectMove, which: int, move: Move) -> DirectMove:
        ready = self.streams.mark(transfer.slot.home)
        with self._lock:
            transfer.slot.busy += 1
        self._lanes[which].submit(self._run, transfer, ready, move)
        return transfer

    def _run(self, transfer: DirectMove, ready: Any, move: Move) -> None:
        """On a thread. Whatever goes wrong ends up in the transfer: a lost error would be a hang."""
        error: Exception | None = None
        try:
            self.streams.until(ready)
            transfer.run(move)
        except Exception as failure:  # noqa: BLE001 - raised on the thread that waits
            error = failure
        transfer.end(error)
        self._no_longer_busy(transfer.slot)

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:
        if not self.held_bytes:
            self.host.fit(held_bytes)

    def _close_file(self) -> None:
        self._direct.close()
