"""Entries of the executor's table, counters of its moves, and the events that it reports."""

from __future__ import annotations

import enum
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import final

import torch

from elbowroom.engine.tiers.base import LowerTier, Slot, Transfer
from elbowroom.engine.tiers.streams import bytes_of
from elbowroom.torch_compat.core import storage_key, version_of

SPOILT = 255
"""Byte value that makes each float NaN."""


class Remake(ABC):
    """Rebuilds the bytes of dropped entries."""

    @abstractmethod
    def run(self) -> None:
        """Bring the bytes of all its entries onto the device."""


class Place(enum.Enum):
    """Where the bytes of a saved storage are."""

    ON_DEVICE = "on device"
    LEAVING = "leaving"
    AWAY = "away"
    RETURNING = "returning"
    DROPPED = "dropped"


class Entry:
    """One saved storage.

    Attributes:
        n: number of the saved storage in its step.
        place: where its bytes are.
        device: strong reference to the device storage, if the table must hold it; others may hold it too.
        alive: weak reference to the last device storage that held the bytes.
        version: version counter at the first save; a later save at another version means changed bytes.
        handles: number of saved tensors that lie on it and still exist.
        reads: number of times that it was read in this step.
        home: the stream that it was saved on, if there are streams and it may leave.
        arrived: the swap back that brought its present bytes.
        remake: rebuilds its bytes if they were dropped; None once they are there.
        watched: version counters of tensors that wrap others on it, each with its value at the save; see
            tensor_subclasses.py.
        written: whether its slot has all of its bytes: a write that was given up leaves it with some.
    """

    __slots__ = (
        "__weakref__",
        "alive",
        "arrived",
        "back",
        "device",
        "handles",
        "home",
        "key",
        "n",
        "out",
        "place",
        "reads",
        "remake",
        "size_bytes",
        "slot",
        "version",
        "watched",
        "written",
    )  # fmt: skip

    def __init__(self, n: int, storage: torch.UntypedStorage, version: int) -> None:
        self.n = n
        self.size_bytes = storage.nbytes()
        self.place = Place.ON_DEVICE
        self.device: torch.UntypedStorage | None = None
        self.alive: Callable[[], torch.UntypedStorage | None] = weakref.ref(storage)
        self.key = storage_key(storage)
        self.version = version
        self.handles = 1
        self.reads = 0
        self.home: Hashable = None
        self.arrived: Transfer | None = None
        self.slot: Slot | None = None
        self.out: Transfer | None = None
        self.back: Transfer | None = None
        self.remake: Remake | None = None
        self.watched: tuple[tuple[torch.Tensor, int], ...] = ()
        self.written = False

    def changed(self) -> bool:
        """Whether a tensor that wraps others on it was changed in place since its save."""
        return any(version_of(counter) != version for counter, version in self.watched)

    @property
    def leaves(self) -> bool:
        """Whether its bytes leave the device, or have left: its handles hold none."""
        return self.slot is not None or self.place is Place.DROPPED

    def held(self) -> torch.UntypedStorage | None:
        """Return the device storage that has its bytes, if there is one."""
        return self.alive()

    def empty(self) -> None:
        """Free the device bytes, as the tier has a copy. Other readers keep the storage alive."""

    def refill(self, tier: LowerTier) -> tuple[torch.UntypedStorage, Transfer]:
        """Start to bring its bytes back."""
        assert self.slot is not None, "what is away has a slot"
        return tier.read(self.slot)

    def lose(self) -> None:
        """Forget the device storage: the bytes did not arrive."""
        self.alive = _nothing


@final
class StateEntry(Entry):
    """One absence of an optimizer state or gradient. Its storage stays, as tensors lie on it; only the bytes leave."""

    __slots__ = ("_tier",)

    def __init__(self, n: int, storage: torch.UntypedStorage, tier: LowerTier) -> None:
        super().__init__(n, storage, 0)
        self.home = tier.home()
        self._tier = tier

    def held(self) -> torch.UntypedStorage | None:
        return None if self.place is Place.AWAY else self.alive()

    def empty(self) -> None:
        storage = self.alive()
        if storage is not None:
            self._tier.resize(storage, 0, self.home)

    def refill(self, tier: LowerTier) -> tuple[torch.UntypedStorage, Transfer]:
        storage = self.alive()
        assert storage is not None, "a state that is brought back is still used by tensors"
        assert self.slot is not None, "what is away has a slot"
        return storage, tier.refill(self.slot, storage)

    def lose(self) -> None:
        self.empty()

    def spoil(self) -> None:
        """Fill the storage with NaN: its bytes are lost for good. Using it then gives wrong numbers, and no crash."""
        storage = self.alive()
        if storage is not None:
            self._tier.resize(storage, self.size_bytes, self.home)
            bytes_of(storage).fill_(SPOILT)


def _nothing() -> None:
    """Stand in for a weak reference to a storage that is gone."""


@dataclass(slots=True)
class Counters:
    """Counts of what one step moved. Times in nanoseconds, sizes in bytes."""

    swapped_out_bytes: int = 0
    swapped_back_bytes: int = 0
    stall_ns: int = 0
    swaps: int = 0
    recomputed_bytes: int = 0
    recompute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Happening:
    """Event for the recorder of a step. `start_ns` and `end_ns` are `perf_counter_ns`.

    Attributes:
        transfer: knows the exact times, once all work of the device is done; None if they are known already.
        op: for "recompute", the op of the trace that ran again.
    """

    kind: str
    entry: Entry
    start_ns: int
    end_ns: int
    size_bytes: int = 0
    transfer: Transfer | None = None
    op: int = 0


def moved(kind: str, entry: Entry, transfer: Transfer) -> Happening:
    """Return the event of a transfer that has ended."""
    return Happening(kind, entry, transfer.start_ns, transfer.end_ns, transfer.size_bytes, transfer=transfer)


@dataclass(slots=True)
class Observer:
    """Callbacks of a recorder; all optional."""

    placed: Callable[[Entry, torch.UntypedStorage], None] | None = None
    emptied: Callable[[Entry, torch.UntypedStorage], None] | None = None
    stalled: Callable[[Happening], None] | None = None
    moved: Callable[[Happening], None] | None = None
    dropped: Callable[[Entry], None] | None = None
    recomputes: Callable[[bool], None] | None = None
