"""Interface of a lower tier, and of the transfers to and from it.

A transfer moves one whole storage, in the background. The executor asks whether it is `done()`, or waits for it. It
carries its error until the executor takes it: nothing is raised in a worker thread. Times are `time.perf_counter_ns`.
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
    """Part of a transfer between the host and the disk: `kind` is "disk_write" or "disk_read"."""

    kind: str
    start_ns: int
    end_ns: int
    size_bytes: int


class Transfer(ABC):
    """Transfer of one storage.

    Attributes:
        size_bytes: bytes of the storage.
        start_ns: time at which its first byte moved; 0 before.
        end_ns: time at which its last byte had moved; 0 before.
        error: why it failed, or None.
        muted: whether another transfer failed while it was under way, so that its own error says nothing new.
        blocks: whether `wait` may block the host.
    """

    error: Exception | None = None
    muted: bool = False
    blocks: bool = True

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.start_ns = 0
        self.end_ns = 0

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, with success or an error."""

    @abstractmethod
    def wait(self) -> None:
        """Block until it has ended. Does not raise: look at `error`."""

    @abstractmethod
    def abandon(self) -> None:
        """Give it up, as the bytes are not needed any more: skip what has not started."""

    def used(self, storage: torch.UntypedStorage) -> None:  # noqa: B027 - for tiers without streams
        """Prepare the storage that it brought back for a reader on the calling thread's stream."""

    def times(self) -> tuple[int, int]:
        """Return (start_ns, end_ns). Call it once all work of the device is done."""
        return self.start_ns, self.end_ns

    def on_lane(self, kind: str) -> str:
        """Return the event name: `kind` ("swap_out" or "swap_back"), or a hop's kind if no copy lane was used."""
        return kind

    def hops(self) -> Sequence[Hop]:
        """Return the hops to or from the disk so far."""
        return ()


@final
class EndedTransfer(Transfer):
    """Transfer that took place at once."""

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


@final
class SkippedWrite(Transfer):
    """Write that is not made, as the tier has the bytes. It ends where a schedule has its end waited for."""

    blocks = False

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._waited_for = False

    def done(self) -> bool:
        return self._waited_for

    def wait(self) -> None:
        self._waited_for = True

    def abandon(self) -> None:
        self._waited_for = True


class Slot:
    """Room for one storage on a tier.

    Attributes:
        offset: place on the tier; only the tier uses it.
        size_bytes: bytes of the storage.
        home: result of `LowerTier.home` when the storage was saved.
    """

    __slots__ = ("home", "offset", "size_bytes")

    def __init__(self, offset: int, size_bytes: int) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        self.home: Hashable = None


@final
class LentSlot(Slot):
    """Slot in host memory that code outside has too: the tensors of a state dict lie on it.

    It is ordinary memory, not page-locked. So a copy to it holds up the host until it has ended, and code that reads
    it waits for no stream (CUDA Runtime API, "API synchronization behavior").

    Args:
        memory: the storage with its bytes.
        home: see `Slot`.

    Attributes:
        address: address of the first byte.
    """

    __slots__ = ("address", "memory")

    def __init__(self, memory: torch.UntypedStorage, home: Hashable) -> None:
        super().__init__(0, memory.nbytes())
        self.memory = memory
        self.address = memory.data_ptr()
        self.home = home


class LowerTier(ABC):
    """Tier for storages that are away from the device.

    Attributes:
        streams: streams of the device; None if it has none.
        timed: whether copies from now on must record their times.
    """

    name: TierName
    streams: Streams | None = None
    timed: bool = False

    def home(self) -> Hashable:
        """Return the stream on which the calling thread uses storages; None if the device has no streams."""
        return None

    @abstractmethod
    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:
        """Reserve a slot for a storage, on the tier `to` of the plan if there are several. Raises TierFull."""

    @abstractmethod
    def release(self, slot: Slot) -> None:
        """Free a slot; no transfer on it may be under way."""

    @abstractmethod
    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:
        """Start to copy a device storage into its slot; the caller keeps the storage alive until it has ended."""

    @abstractmethod
    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
        """Start to copy a slot into a new device storage."""

    @abstractmethod
    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:
        """Start to copy a slot into a device storage without bytes, which gets the slot's size.

        The transfer keeps the storage alive.
        """

    def lend(self, slot: Slot, *, from_disk: bool) -> LentSlot | None:  # noqa: ARG002
        """Move the bytes of a slot to host memory that code outside may have too.

        Args:
            slot: the slot; nothing is being written to it.
            from_disk: whether to read what is on the disk; it stays there otherwise.

        Returns:
            The new slot; None if the bytes stay where they are.
        """
        return None

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, home: Hashable) -> None:  # noqa: ARG002
        """Give a device storage new memory, of the stream `home` if there are streams. What it held is lost."""
        storage.resize_(size_bytes)

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes of all reserved slots."""

    def bytes_by_tier(self) -> dict[TierName, int]:
        """Return the bytes of the reserved slots on each tier."""
        return {self.name: self.held_bytes}

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked host memory that it takes."""
        return 0

    def fit(self, held_bytes: Mapping[TierName, int]) -> None:  # noqa: B027 - for tiers that need no hint
        """Take a hint: the most bytes that each tier will hold from now on."""

    @abstractmethod
    def close(self) -> None:
        """Free the tier's own resources (threads, a file). Call it only once nothing is held."""


@final
class HostTier(LowerTier):
    """Host tier with plain copies in RAM.

    On a machine whose device is RAM it saves no memory. `capture` uses it: it must swap every saved storage to learn
    what else refers to it.
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
