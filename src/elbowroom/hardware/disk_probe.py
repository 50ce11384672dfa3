"""Disk probe: measured rates of this computer's disk, as the runtime uses it, and of its memory.

Four threads write and read the disk with O_DIRECT from page-aligned buffers, so the page cache does not count. A file
system that refuses O_DIRECT is measured with buffered I/O and fsync. The file has no name and mode 0600.
"""

from __future__ import annotations

import errno
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from elbowroom.errors import TierFailed, TierFull

PROBE_BYTES = 256 * 2**20
_BLOCK_BYTES = 4 * 2**20
_THREADS = 4
_LATENCY_READS = 15
_COPY_BYTES = 64 * 2**20
_COPIES = 5


class DiskRates(NamedTuple):
    """Measured rates of a directory's file system.

    Attributes:
        out_bytes_per_s: rate of writes.
        back_bytes_per_s: rate of reads.
        latency_ns: median time to read one page.
        direct: whether it was measured with O_DIRECT; else some reads may come from the page cache.
    """

    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int
    direct: bool


def measure_disk(directory: str, probe_bytes: int = PROBE_BYTES) -> DiskRates:
    """Write and read a private file of `probe_bytes` in a directory.

    Raises:
        TierFull: there is no room for the file.
        TierFailed: the directory refuses it.
    """
    try:
        try:
            return _measure_disk(directory, probe_bytes, getattr(os, "O_DIRECT", 0))
        except OSError as problem:
            if problem.errno != errno.EINVAL:
                raise
            return _measure_disk(directory, probe_bytes, 0)
    except OSError as problem:
        kind = TierFull if problem.errno in (errno.ENOSPC, errno.EDQUOT) else TierFailed
        raise kind(
            f"disk tier: {directory} cannot be measured: {problem.strerror}; {probe_bytes} bytes of room are needed; "
            "free some, or name another directory",
            tier="disk",
        ) from problem


def measure_memory() -> int:
    """Return the bytes per second that one thread copies in memory, counting both reads and writes."""
    source, target = bytearray(_COPY_BYTES), bytearray(_COPY_BYTES)

    def copy() -> None:
        target[:] = source

    copy()  # the first copy also makes the pages
    return _rate(2 * _COPY_BYTES, min(_timed_ns(copy) for _ in range(_COPIES)))


def _measure_disk(directory: str, probe_bytes: int, direct_flag: int) -> DiskRates:
    block_count = max(1, probe_bytes // _BLOCK_BYTES)
    with _private_file(directory, direct_flag) as descriptor, ThreadPoolExecutor(_THREADS) as threads:
        buffers = [_aligned(_BLOCK_BYTES) for _ in range(_THREADS)]

        def each_block(move: Callable[[int, memoryview, int], int]) -> None:
            def of_thread(thread: int) -> None:
                for block in range(thread, block_count, _THREADS):
                    _move_all(move, descriptor, buffers[thread], block * _BLOCK_BYTES)

            list(threads.map(of_thread, range(_THREADS)))

        def write() -> None:
            each_block(os.pwrite)
            if not direct_flag:
                os.fsync(descriptor)

        write()  # the first pass also allocates the blocks, which the runtime does once for all steps
        out_ns = _timed_ns(write)
        _drop_cache(descriptor)
        back_ns = _timed_ns(lambda: each_block(_read_into))
        _drop_cache(descriptor)
        page = buffers[0][: mmap.PAGESIZE]
        reads_ns = [
            _timed_ns(lambda at=block * _BLOCK_BYTES: _read_into(descriptor, page, at))
            for block in range(min(block_count, _LATENCY_READS))
        ]
    size_bytes = block_count * _BLOCK_BYTES
    latency_ns = int(statistics.median(reads_ns))
    return DiskRates(_rate(size_bytes, out_ns), _rate(size_bytes, back_ns), latency_ns, bool(direct_flag))


@contextmanager
def _private_file(directory: str, flags: int) -> Generator[int]:
    """Open a new file of mode 0600 that loses its name at once."""
    first, path = tempfile.mkstemp(prefix="elbowroom-", dir=directory)
    try:
        descriptor = os.open(path, os.O_RDWR | flags)
    finally:
        os.close(first)
        os.unlink(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _aligned(size_bytes: int) -> memoryview:
    """Return whole pages, as O_DIRECT requires, filled with noise, which no file system compresses."""
    view = memoryview(mmap.mmap(-1, size_bytes))
    view[:] = os.urandom(size_bytes)
    return view


def _read_into(descriptor: int, buffer: memoryview, at: int) -> int:
    return os.preadv(descriptor, [buffer], at)


def _move_all(move: Callable[[int, memoryview, int], int], descriptor: int, buffer: memoryview, at: int) -> None:
    done = 0
    while done < len(buffer):
        moved = move(descriptor, buffer[done:], at + done)
        if moved <= 0:
            raise OSError(errno.EIO, "a transfer came up short")
        done += moved


def _drop_cache(descriptor: int) -> None:
    """Ask the system to read from the disk, not from the page cache, if it takes such advice."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _timed_ns(action: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - start


def _rate(size_bytes: int, duration_ns: int) -> int:
    return max(1, size_bytes * 10**9 // max(1, duration_ns))
