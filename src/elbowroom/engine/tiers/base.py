"""What the runtime asks of a place below the device.

A transfer moves one whole storage. It runs on its own, is asked `done()` or waited for, and carries its error until
the runtime takes it: nothing is raised in a worker thread. Times are `time.perf_counter_ns`.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, final

import torch

from elbowroom.engine.tiers.streams import Streams
from elbowroom.machine import TierName


class Hop(NamedTuple):
    """Bytes that a transfer moved between the host and the disk: `kind` is "disk_write" or "disk_read"."""

    kind: str
    start_ns: int
    end_ns: int
    size_bytes: int


class Transfer(ABC):
    """One storage on its way.

    Attributes:
        size_bytes: bytes of the storage.
        start_ns: when its first byte moved; 0 before.
        end_ns: when its last byte had moved; 0 before.
        error: why it failed, or None.
        told: whether another one failed while it was under way, so that its own error says nothing new.
        blocks: whether `wait` may hold up the host.
    """

    error: Exception | None = None
    told: bool = False
    blocks: bool = True

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.start_ns = 0
        self.end_ns = 0

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    @abstractmethod
    def wait(self) -> None:
        """Block until it has ended. Does not raise: look at `error`."""

    @abstractmethod
    def abandon(self) -> None:
        """The bytes are not needed any more: skip what has not started."""

    def used(self, storage: torch.UntypedStorage) -> None:  # noqa: B027 - where there are no streams
        """The storage that it brought back goes to a reader on the calling thread's stream, if there are streams."""

    def times(self) -> tuple[int, int]:
        """(start_ns, end_ns), asked for once all work of the device is done."""
        return self.start_ns, self.end_ns

    def on_lane(self, kind: str) -> str:
        """What is said of it, "swap_out" or "swap_back"; as of a hop where it never was on a lane of copies."""
        return kind

    def hops(self) -> Sequence[Hop]:
        """What went on to the disk, or came from it, so far."""
        return ()


@final
class EndedTransfer(Transfer):
    """A transfer that took place at once."""

    def __init__(self, size_bytes: int, start_ns: int) -> None:
        super().__init__(size_bytes)
        self.start_ns = start_ns
        self.end_ns = time.perf_counter_ns()

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def abandon(self) -> None:
        return


class Slot:
    """Room for one storage on a tier.

    Attributes:
        offset: the tier's own business.
        size_bytes: bytes of the storage.
        home: what `LowerTier.home` said when the storage was saved.
    """

    __slots__ = ("home", "offset", "size_bytes")

    def __init__(self, offset: int, size_bytes: int) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        self.home: Hashable = None


class LowerTier(ABC):
    """A place for storages that are away from the device.

    Attributes:
        streams: the device's, None where it has none.
        timed: whether copies from now on must be able to tell their times.
    """

    name: TierName
    streams: Streams | None = None
    timed: bool = False

    def home(self) -> Hashable:
        """The stream on which the calling thread uses storages; None where the device has none."""
        return None

    @abstractmethod
    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:
        """Room for a storage, on the tier that the plan says, where there are several. Raises TierFull."""

    @abstractmethod
    def release(self, slot: Slot) -> None:
        """Give room back; no transfer on it may be under way."""

    @abstractmethod
    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        """Start to copy a device storage into its slot; the caller keeps the storage alive until it has ended."""

    @abstractmethod
    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        """Start to copy a slot into a new device storage."""

    @abstractmethod
    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        """Start to copy a slot into a device storage without bytes, which gets as many as the slot has.

        The transfer keeps the storage alive.
        """

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, home: Hashable) -> None:  # noqa: ARG002
        """Give a device storage other memory, of the stream `home` where there are streams; what it held is lost."""
        storage.resize_(size_bytes)

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of all reserved slots."""

    @property
    def pinned_bytes(self) -> int:
        """Page-locked host memory that it takes."""
        return 0

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:  # noqa: B027 - where it does not matter
        """So much will be held at most on each tier from now on; a hint."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the tier itself takes (threads, a file). Only once nothing is held."""


@final
class HostTier(LowerTier):
    """Plain copies in RAM.

    On a machine whose device is RAM it saves nothing: it serves `capture`, which must swap every saved storage to learn
    who else holds it.
    """

    name: TierName = "host"

    def __init__(self) -> None:
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._next = 0
        self._held_bytes = 0
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:  # noqa: ARG002 - there is one
        with self._lock:
            self._next += 1
            self._held_bytes += size_bytes
            return Slot(self._next, size_bytes)

    def release(self, slot: Slot) -> None:
        with self._lock:
            self._copies.pop(slot.offset, None)
            self._held_bytes -= slot.size_bytes

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        start_ns = time.perf_counter_ns()
        self._copies[slot.offset] = storage.clone()
        return EndedTransfer(slot.size_bytes, start_ns)

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        start_ns = time.perf_counter_ns()
        storage = self._copies[slot.offset].clone()
        return storage, EndedTransfer(slot.size_bytes, start_ns)

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        start_ns = time.perf_counter_ns()
        self.resize(storage, slot.size_bytes, slot.home)
        storage.copy_(self._copies[slot.offset])
        return EndedTransfer(slot.size_bytes, start_ns)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def close(self) -> None:
        return
