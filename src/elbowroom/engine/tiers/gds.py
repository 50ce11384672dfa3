"""Disk tier without the host in between, for a device with streams: GPUDirect Storage, by torch.cuda.gds.

Note: [Direct]
torch moves a storage between the device and a file on the calling thread, outside of any stream. So a thread of ours
does it. It first waits until the storage's stream has done all work that it had been given at the request. Then the
bytes are there, or the memory is free of earlier work. A stream cannot wait for a thread. So code that needs the end of
a move blocks the host until then. The bytes on the device follow from the order of the host's calls, as with copies. A
storage that has left is freed where the schedule waits for it, even if the move ended earlier.

torch 2.11 to 2.13 hold Python's lock during a move. So a storage goes in pieces, and the training runs in between. They
raise if the driver reports an error, and do not check how many bytes it moved. So room in the file is reserved
beforehand, and its size checked before each piece: neither can make a move come up short. Buffers are not registered
with the driver. That is for memory that stays, and storages come and go with each step.
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
"""Size of a piece. Moving it takes a few milliseconds, in which no other thread of Python runs."""

Move = Callable[[torch.UntypedStorage, int], None]
"""Moves a piece of device memory to or from an offset in the file."""


@final
class DirectFile:
    """Spill file that the driver of GPUDirect Storage has open too.

    Args:
        file: the spill file, private and without a name.
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
        """Close both files. The bytes are gone then."""
        self._opened = None  # GdsFile has no method to close it
        self.file.close()


def open_direct(directory: str | None, capacity_bytes: int | None, device: torch.device) -> DirectFile | None:
    """Open the spill file for GPUDirect Storage. Returns None, with a warning, if the machine does not offer that.

    A page is written and read back as a test. Arguments as for SpillFile, whose errors it raises.
    """
    file = SpillFile(directory, capacity_bytes)
    try:
        if not file.direct:  # GdsFile would refuse it too, and print another error when it is destroyed
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
    """Transfer of one storage past the host. Like a StreamCopy, it is `done` only after `wait`.

    Args:
        storage: the device storage.
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
        """Move the pieces, on a thread, until the transfer is given up. See Note: [Threads and storages]."""
        for piece in self.slot.pieces:
            with self._lock:
                if self._storage is None:
                    return
                self.start_ns = self.start_ns or time.perf_counter_ns()
                move(self._storage[piece.start : piece.start + piece.size_bytes], piece.offset)

    def end(self, error: Exception | None = None) -> None:
        """Note that it has ended, with success or an error."""
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
        with self._lock:  # a piece under way has to end before the memory may go to another storage
            self._storage = None
            self._ended.set()

    def on_lane(self, kind: str) -> str:  # noqa: ARG002 - it uses no copy lane of the device
        return self.kind


@final
class DirectOut(DirectMove):
    """Move to the disk."""

    kind = "disk_write"


@final
class DirectBack(DirectMove):
    """Move from the disk."""

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
    """Host tier and disk tier, each reached from the device directly. See Note: [Direct].

    Args:
        host: the tier of what stays on the host.
        direct: the spill file.
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
        """Run a move on a thread. Any error ends up in the transfer: a lost error would be a hang."""
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
