"""Disk tier: threads move whole storages to and from the spill file.

Each direction is a lane: a first-in first-out queue of chunks that two threads work off. So storages end in the order
of the requests. A write goes straight from the storage if its address suits O_DIRECT. If not, it goes through a buffer
of one chunk per thread. A read goes straight into fresh page-aligned memory, in huge pages if the system has them. That
memory becomes the new storage, and returns to the system when the storage dies.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import final

import torch

from elbowroom.engine.tiers.base import EndedTransfer, LentSlot, LowerTier, Slot, Transfer
from elbowroom.engine.tiers.ranges import PAGE_BYTES, whole_pages
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.errors import TierFailed, TierFull
from elbowroom.machine import TierName
from elbowroom.units import format_bytes

CHUNK_BYTES = 4 << 20
THREADS_PER_LANE = 2


@final
class DiskTransfer(Transfer):
    """Transfer of one storage in chunks; it ends with the last chunk."""

    def __init__(self, size_bytes: int, chunks: int) -> None:
        super().__init__(size_bytes)
        self._left = chunks
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.abandoned = False

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        self._ended.wait()

    def abandon(self) -> None:
        self.abandoned = True

    def started(self) -> None:
        with self._lock:
            self.start_ns = self.start_ns or time.perf_counter_ns()

    def chunk_ended(self, error: Exception | None) -> None:
        with self._lock:
            self.error = self.error or error
            self._left -= 1
            if self._left == 0:
                self.end_ns = time.perf_counter_ns()
                self._ended.set()


@final
class DiskTier(LowerTier):
    """Disk tier in a spill file.

    Args:
        directory, capacity_bytes: as for SpillFile, whose errors it raises.
    """

    name: TierName = "disk"

    def __init__(self, directory: str | None = None, capacity_bytes: int | None = None) -> None:
        self.file = SpillFile(directory, capacity_bytes)
        self._writers = lane("elbowroom-write", THREADS_PER_LANE)
        self._readers = lane("elbowroom-read", THREADS_PER_LANE)
        self._buffers = threading.local()

    @property
    def held_bytes(self) -> int:
        return self.file.held_bytes

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:  # noqa: ARG002 - there is one
        return self.file.reserve(size_bytes)

    def release(self, slot: Slot) -> None:
        if not isinstance(slot, LentSlot):
            self.file.release(slot)

    def lend(self, slot: Slot, *, from_disk: bool) -> LentSlot | None:  # noqa: ARG002 - nothing is read
        try:
            memory = self.file.lend(slot)
        except OSError:
            return None
        return LentSlot(_storage_on(memory, slot.size_bytes), slot.home)

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        address = storage.data_ptr()
        if isinstance(slot, LentSlot):
            return _copied(slot.address, address, slot.size_bytes)
        starts = range(0, slot.size_bytes, CHUNK_BYTES)
        transfer = DiskTransfer(slot.size_bytes, len(starts))
        for start in starts:
            length = min(CHUNK_BYTES, slot.size_bytes - start)
            self._writers.submit(self._write_chunk, transfer, address + start, length, slot.offset + start)
        return transfer

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        memory = _fresh_memory(whole_pages(slot.size_bytes))
        whole = memoryview(memory)
        starts = range(0, len(memory), CHUNK_BYTES)
        transfer = DiskTransfer(slot.size_bytes, len(starts))
        for start in starts:
            self._readers.submit(self._read_chunk, transfer, whole[start : start + CHUNK_BYTES], slot.offset + start)
        return _storage_on(memory, slot.size_bytes), transfer

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        self.resize(storage, slot.size_bytes, slot.home)
        if isinstance(slot, LentSlot):
            return _copied(storage.data_ptr(), slot.address, slot.size_bytes)
        starts = range(0, slot.size_bytes, CHUNK_BYTES)
        transfer = DiskTransfer(slot.size_bytes, len(starts))
        for start in starts:
            length = min(CHUNK_BYTES, slot.size_bytes - start)
            self._readers.submit(self._refill_chunk, transfer, storage, start, length, slot.offset + start)
        return transfer

    def close(self) -> None:
        """End the threads and the file."""
        self._writers.shutdown(wait=True, cancel_futures=False)
        self._readers.shutdown(wait=True, cancel_futures=False)
        self.file.close()

    def _write_chunk(self, transfer: DiskTransfer, address: int, length: int, offset: int) -> None:
        self._run(transfer, "writing", lambda: self.file.write(self._source(address, length), offset))

    def _read_chunk(self, transfer: DiskTransfer, target: memoryview, offset: int) -> None:
        self._run(transfer, "reading", lambda: self.file.read(target, offset))
        target.release()

    def _refill_chunk(
        self, transfer: DiskTransfer, storage: torch.UntypedStorage, start: int, length: int, offset: int
    ) -> None:
        """Read a chunk through a buffer, as torch's own memory is not page-aligned."""

        def work() -> None:
            buffer = self._buffer()
            self.file.read(memoryview(buffer)[: whole_pages(length)], offset)
            ctypes.memmove(storage.data_ptr() + start, (ctypes.c_char * length).from_buffer(buffer), length)

        self._run(transfer, "reading", work)

    def _run(self, transfer: DiskTransfer, doing: str, work: Callable[[], None]) -> None:
        """Do one chunk's work. Any error ends up in the transfer: a lost error would be a hang."""
        error: Exception | None = None
        try:
            if not transfer.abandoned:
                transfer.started()
                self.file.check()
                work()
        except OSError as failure:
            error = self.file.failed(doing, failure)
        except Exception as failure:  # noqa: BLE001 - raised later, on the thread that waits
            error = failure
        finally:
            transfer.chunk_ended(error)

    def _source(self, address: int, length: int) -> memoryview:
        """Return the bytes at an address in whole pages, copied to an aligned buffer if O_DIRECT needs that."""
        aligned = address % PAGE_BYTES == 0 and length % PAGE_BYTES == 0
        if aligned or not self.file.direct:
            return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
        buffer = self._buffer()
        ctypes.memmove((ctypes.c_char * length).from_buffer(buffer), address, length)
        return memoryview(buffer)[: whole_pages(length)]

    def _buffer(self) -> mmap.mmap:
        """Return this thread's own chunk of aligned memory."""
        buffer = getattr(self._buffers, "buffer", None)
        if buffer is None:
            buffer = self._buffers.buffer = _fresh_memory(CHUNK_BYTES)
        return buffer


def _fresh_memory(length: int) -> mmap.mmap:
    """Map private zeroed memory: page-aligned, and returned to the system when dropped."""
    try:
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise TierFull(
            f"device tier: the system refuses {format_bytes(length)} of RAM to bring a storage back "
            f"({error.strerror}); give the process more memory or elbowroom a smaller budget",
            tier="device",
        ) from error
    if length >= 2 << 20:
        with suppress(OSError):  # a kernel built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _storage_on(memory: mmap.mmap, size_bytes: int) -> torch.UntypedStorage:
    """Return a storage on mapped memory, which ends with it."""
    return torch.frombuffer(memory, dtype=torch.uint8, count=size_bytes).untyped_storage()


def _copied(target: int, source: int, size_bytes: int) -> EndedTransfer:
    """Copy bytes from one address to another at once."""
    start_ns = time.perf_counter_ns()
    ctypes.memmove(target, source, size_bytes)
    return EndedTransfer(size_bytes, start_ns)


def lane(name: str, threads: int) -> ThreadPoolExecutor:
    """Start threads, and wait until they run, so that a thread that cannot start is found before the first write."""
    made = ThreadPoolExecutor(threads, name)
    all_run = threading.Barrier(threads)
    try:
        for _ in range(threads):
            made.submit(all_run.wait)
    except RuntimeError as error:
        all_run.abort()
        raise TierFailed(
            f"disk tier: the system refuses its {threads} threads ({error}); raise the limits of the process (ulimit "
            "-u, ulimit -v, the memory cgroup)",
            tier="disk",
        ) from error
    return made
