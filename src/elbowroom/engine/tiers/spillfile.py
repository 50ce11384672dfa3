"""Spill file: private, without a name, with slots handed out in pages.

The file has mode 0600 and no name from the start (O_TMPFILE). A file system that lacks that has it unlinked as soon as
it is open. So no exit, `kill -9` included, leaves anything: the kernel frees the bytes with the last descriptor. Room
is reserved with posix_fallocate before a byte is written. So a full disk is an error at a known moment, and not in a
write. O_DIRECT keeps the page cache, which a memory cgroup charges, out of the way. A file system that refuses it
(tmpfs before Linux 6.6, some network file systems) gets buffered I/O and one warning.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref
from contextlib import suppress
from typing import final

from elbowroom.engine.tiers.base import Slot
from elbowroom.engine.tiers.ranges import PAGE_BYTES, Ranges, whole_pages
from elbowroom.errors import TierFailed, TierFull
from elbowroom.notices import warn
from elbowroom.units import format_bytes

GROWTH_BYTES = 64 << 20
ENDLESS_BYTES = 1 << 62
"""Size of the address range of the file, without an end in practice: it grows as far as ranges are handed out."""


@final
class SpillFile:
    """Slots in one private file.

    Args:
        directory: directory of the file; None takes TMPDIR or the system's temporary directory.
        capacity_bytes: the most it may grow to; None allows what the file system has free.

    Raises:
        TierFull: the directory has less than one growth step free, or less than `capacity_bytes`.
        TierFailed: the directory cannot hold a file.
    """

    def __init__(self, directory: str | None = None, capacity_bytes: int | None = None) -> None:
        self.directory = os.path.abspath(directory or tempfile.gettempdir())
        self.capacity_bytes = capacity_bytes
        self._check_free(capacity_bytes or GROWTH_BYTES)
        self.descriptor, self.direct = _open_private(self.directory)
        self._identity = _identity(self.descriptor)
        self._closing = weakref.finalize(self, _close_own, self.descriptor, self._identity)
        if not self.direct:
            _warn_of_buffering(self.directory)
        self._lock = threading.Lock()
        self._size_bytes = 0
        self._ranges = Ranges(ENDLESS_BYTES)
        self.held_bytes = 0

    def _check_free(self, needed_bytes: int) -> None:
        try:
            room = os.statvfs(self.directory)
        except OSError as error:
            raise _cannot_open(self.directory, error) from error
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes < needed_bytes:
            raise TierFull(
                f"disk tier: {self.directory} has {format_bytes(free_bytes)} free, {format_bytes(needed_bytes)} are "
                "needed; free some space, or name another directory with spill_dir= (--spill-dir, TMPDIR)",
                tier="disk",
            )

    def reserve(self, size_bytes: int) -> Slot:
        """Reserve whole pages for `size_bytes`: the smallest free range that fits, else the file grows.

        O_DIRECT needs offsets, lengths and addresses that are multiples of the logical block, as pages are.
        """
        with self._lock:
            start = self._ranges.take(size_bytes)
            assert start is not None, "there is no end to it"
            try:
                self._grow(start + whole_pages(size_bytes))
            except BaseException:
                self._ranges.give_back(start, size_bytes)
                raise
            self.held_bytes += size_bytes
        return Slot(start, size_bytes)

    def release(self, slot: Slot) -> None:
        """Free a slot; neighbouring free ranges become one."""
        with self._lock:
            self._ranges.give_back(slot.offset, slot.size_bytes)
            self.held_bytes -= slot.size_bytes

    def lend(self, slot: Slot) -> mmap.mmap:
        """Map a slot into memory: its bytes stay in the file, and the system reads and writes its pages on use.

        The slot is free again once nothing refers to the mapping, which outlives the descriptor.

        Raises:
            OSError: the system has no room for another mapping.
        """
        memory = mmap.mmap(self.descriptor, whole_pages(slot.size_bytes), offset=slot.offset)
        with self._lock:
            self.held_bytes -= slot.size_bytes
        weakref.finalize(memory, self._returned, slot).atexit = False
        return memory

    def _returned(self, slot: Slot) -> None:
        with self._lock:
            self._ranges.give_back(slot.offset, slot.size_bytes)

    def _grow(self, needed_bytes: int) -> None:
        if needed_bytes <= self._size_bytes:
            return
        if self.capacity_bytes is not None and needed_bytes > self.capacity_bytes:
            raise self._full(needed_bytes, f"its budget is {format_bytes(self.capacity_bytes)}")
        self.check()  # growing a file that was cut short would put zeros where the bytes were
        target_bytes = max(needed_bytes, self._size_bytes + GROWTH_BYTES)
        if self.capacity_bytes is not None:
            target_bytes = min(target_bytes, self.capacity_bytes // PAGE_BYTES * PAGE_BYTES)
        for wanted_bytes in (target_bytes, needed_bytes):
            try:
                _allocate(self.descriptor, self._size_bytes, wanted_bytes - self._size_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise self.failed("growing the spill file", error) from error
                if wanted_bytes == needed_bytes:
                    raise self._full(needed_bytes, os.strerror(error.errno)) from error
            else:
                self._size_bytes = wanted_bytes
                return

    def write(self, source: memoryview, offset: int) -> None:
        """Write whole pages from page-aligned memory."""
        done = 0
        while done < len(source):
            count = os.pwrite(self.descriptor, source[done:], offset + done)
            if count <= 0:
                raise self._came_short("write", done, len(source))
            done += count

    def read(self, target: memoryview, offset: int) -> None:
        """Read whole pages into page-aligned memory."""
        done = 0
        while done < len(target):
            count = os.preadv(self.descriptor, [target[done:]], offset + done)
            if count <= 0:
                raise self._came_short("read", done, len(target))
            done += count

    def _came_short(self, what: str, done: int, wanted: int) -> TierFailed:
        return TierFailed(
            f"disk tier: a {what} in {self.directory} came up short: {done} of {wanted} bytes; the step cannot go on. "
            "Check the disk, or name another directory with spill_dir= (--spill-dir, TMPDIR)",
            tier="disk",
        )

    def check(self) -> None:
        """Raise TierFailed if the descriptor no longer is our file, or if the file was cut short."""
        had_bytes = self._size_bytes  # read first: another thread may let the file grow meanwhile
        try:
            found = os.fstat(self.descriptor)
        except OSError as error:
            raise self.failed("looking at the spill file", error) from error
        if (found.st_dev, found.st_ino) != self._identity or found.st_size < had_bytes:
            raise TierFailed(
                f"disk tier: the spill file in {self.directory} was replaced or cut to {format_bytes(found.st_size)} "
                f"(it had {format_bytes(had_bytes)}); what was swapped is lost. Keep other programs away from "
                "it and start the training again from its last saved state",
                tier="disk",
            )

    def _full(self, needed_bytes: int, reason: str) -> TierFull:
        return TierFull(
            f"disk tier: no room for {format_bytes(needed_bytes)} in {self.directory} ({reason}); free some space, "
            "name a larger directory with spill_dir= (--spill-dir, TMPDIR), or raise the device budget so that less "
            "must be swapped",
            tier="disk",
        )

    def failed(self, doing: str, error: Exception) -> TierFailed:
        """Return the error for an I/O failure: nothing that was read may be used."""
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return TierFailed(
            f"disk tier: {doing} in {self.directory} failed: {reason}; the step cannot go on. Check "
            "the disk, or name another directory with spill_dir= (--spill-dir, TMPDIR)",
            tier="disk",
        )

    def close(self) -> None:
        """Close the descriptor. The bytes are gone then."""
        self._closing()
        self.descriptor = -1


def _cannot_open(directory: str, error: OSError) -> TierFailed:
    return TierFailed(
        f"disk tier: no spill file can be made in {directory}: {error.strerror or error}; name a directory you may "
        "write to with spill_dir= (--spill-dir, TMPDIR)",
        tier="disk",
    )


def _open_private(directory: str) -> tuple[int, bool]:
    """Return the descriptor of a nameless file of mode 0600, and whether O_DIRECT is on."""
    try:
        descriptor = _open_nameless(directory, os.O_DIRECT)
        direct = True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise _cannot_open(directory, error) from error
        try:
            descriptor = _open_nameless(directory, 0)
        except OSError as second:
            raise _cannot_open(directory, second) from second
        direct = False
    return descriptor, direct


def _warn_of_buffering(directory: str) -> None:
    warn(
        f"elbowroom: the file system of {directory} refuses O_DIRECT (a tmpfs does, and is RAM itself); swapping "
        "goes through the page cache and is slower. Name a directory on a disk with spill_dir=",
    )


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _close_own(descriptor: int, identity: tuple[int, int]) -> None:
    """Close a descriptor, unless other code has closed it: its number may be another file's by now."""
    try:
        if _identity(descriptor) == identity:
            os.close(descriptor)
    except OSError:
        pass


def _open_nameless(directory: str, extra: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | extra
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    path = os.path.join(directory, f".elbowroom-{os.getpid()}-{os.urandom(8).hex()}")
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        with suppress(FileNotFoundError):  # Linux makes the file first, and refuses O_DIRECT on it afterwards
            os.unlink(path)


def _allocate(descriptor: int, offset: int, length: int) -> None:
    """Reserve bytes on the disk. On a file system without fallocate, only the length is set."""
    try:
        os.posix_fallocate(descriptor, offset, length)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, offset + length)
