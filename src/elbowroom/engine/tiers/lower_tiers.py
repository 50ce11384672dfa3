"""Lower tiers of a device with streams: the host, and the disk for what the plan says or the host cannot hold."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from typing import Any, ClassVar

import torch

from elbowroom.engine.tiers.base import LentSlot, LowerTier, Slot, Transfer
from elbowroom.engine.tiers.disk_pieces import DiskSlot
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.ranges import whole_pages
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.streams import Streams
from elbowroom.errors import TierError, TierFull
from elbowroom.machine import TierName

POLL_S = 0.001
"""Pause between two looks at whether a disk thread is done with a slot."""


class BelowDevice(LowerTier):
    """Host tier and disk tier. Subclasses implement how storages get to the disk and back.

    Args:
        host: the tier of what stays on the host.

    Attributes:
        skips_host: whether storages go to the disk past the host.
    """

    name: TierName = "host"
    skips_host: ClassVar[bool] = False
    streams: Streams

    def __init__(self, host: StreamedHostTier) -> None:
        self.host = host
        self.streams = host.streams
        self._arenas = host.arenas
        self.budget_bytes = host.arenas.budget_bytes
        self.pinned_budget_bytes = host.arenas.pinned_budget_bytes
        self._file: SpillFile | None = None
        self._lanes: list[ThreadPoolExecutor] = []
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._error: Exception | None = None

    def home(self) -> Any:
        return self.host.home()

    @property
    def held_bytes(self) -> int:
        return self.host.held_bytes + self._held_bytes

    def bytes_by_tier(self) -> dict[TierName, int]:
        return {"host": self.host.held_bytes, "disk": self._held_bytes}

    @property
    def size_bytes(self) -> int:
        """Bytes of host memory that it takes."""
        return self.host.arenas.size_bytes

    @property
    def pinned_bytes(self) -> int:
        return self.host.pinned_bytes

    # Room

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:
        if self._error is not None:
            raise self._error
        if to == "disk":
            return self._on_disk(size_bytes, None)
        try:
            return self._arenas.reserve(size_bytes)
        except TierFull as full:
            return self._on_disk(size_bytes, full)

    def _on_disk(self, size_bytes: int, full: TierFull | None) -> DiskSlot:
        try:
            found = self._room_on_disk(size_bytes)
        except TierError as error:
            if full is None:
                raise
            raise TierFull(f"{full}; and {error}", tier="host") from error
        self._held_bytes += size_bytes
        return found

    @abstractmethod
    def _room_on_disk(self, size_bytes: int) -> DiskSlot:
        """Reserve a slot in the file. Raises TierError."""

    def release(self, slot: Slot) -> None:
        if not isinstance(slot, DiskSlot):
            self.host.release(slot)
            return
        self._held_bytes -= slot.size_bytes
        with self._lock:
            slot.released = True
            self._give_back(slot)

    def _give_back(self, slot: DiskSlot) -> None:
        if slot.released and not slot.busy and self._file is not None:
            self._file.release(slot.within)

    def lend(self, slot: Slot, *, from_disk: bool) -> LentSlot | None:
        if not isinstance(slot, DiskSlot):
            return self.host.lend(slot)
        if not from_disk or self._file is None:
            return None
        self.streams.finish()
        while slot.busy and self._error is None:
            time.sleep(POLL_S)
        if self._error is not None:
            raise self._error
        pages = mmap(-1, whole_pages(slot.size_bytes))
        self._file.read(memoryview(pages), slot.offset)
        memory = torch.frombuffer(pages, dtype=torch.uint8, count=slot.size_bytes).untyped_storage()
        self.release(slot)
        return LentSlot(memory, slot.home)

    def _no_longer_busy(self, slot: DiskSlot) -> None:
        with self._lock:
            slot.busy -= 1
            self._give_back(slot)

    # Transfers

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        self.host.timed = self.timed
        return self._leave(storage, slot) if isinstance(slot, DiskSlot) else self.host.write(storage, slot)

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        self.host.timed = self.timed
        if not isinstance(slot, DiskSlot):
            return self.host.read(slot)
        if self._error is not None:
            raise self._error
        storage = self.streams.new_storage(slot.size_bytes, slot.home)
        return storage, self._bring(slot, storage)

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        self.host.timed = self.timed
        if not isinstance(slot, DiskSlot):
            return self.host.refill(slot, storage)
        if self._error is not None:
            raise self._error
        self.resize(storage, slot.size_bytes, slot.home)
        return self._bring(slot, storage)

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, home: Hashable) -> None:
        self.streams.resize(storage, size_bytes, home)

    @abstractmethod
    def _leave(self, storage: torch.UntypedStorage, slot: DiskSlot) -> Transfer:
        """Start to move a storage to its slot in the file."""

    @abstractmethod
    def _bring(self, slot: DiskSlot, storage: torch.UntypedStorage) -> Transfer:
        """Start to move a slot of the file to a storage."""

    def close(self) -> None:
        try:
            self.streams.finish()
        finally:
            for each in self._lanes:
                each.shutdown(wait=True)
            self._close_file()
        self.host.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()


def translated(file: SpillFile, doing: str, error: Exception) -> Exception:
    """Return an error of a disk thread; errors of the system become errors of the tier."""
    return file.failed(doing, error) if isinstance(error, OSError) else error
