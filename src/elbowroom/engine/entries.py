"""What the executor's table holds, and what it tells of its moves."""

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
"""A byte that makes each float NaN."""


class Remake(ABC):
    """Rebuilds the bytes of dropped entries."""

    @abstractmethod
    def run(self) -> None:
        """Have the bytes of all its entries on the device."""


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
        n: it is the n-th saved storage of its step.
        place: where its bytes are.
        device: strong reference to the device storage, where the table must hold it; others may hold it too.
        alive: weak reference to the last device storage that held the bytes.
        version: version counter at the first save; a later save at another version means changed bytes.
        handles: saved tensors that lie on it and still exist.
        reads: times it was read in this step.
        home: the stream it was saved on, where there are streams and it may leave.
        arrived: the swap back that brought the bytes it has now.
        remake: rebuilds its bytes where they were dropped; None once they are there.
        watched: version counters, as saved, of tensors that wrap others on it; see tensor_subclasses.py.
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

    def changed(self) -> bool:
        """Whether a tensor that wraps others on it was changed in place since it was saved."""
        return any(version_of(counter) != version for counter, version in self.watched)

    @property
    def leaves(self) -> bool:
        """Whether its bytes are not held for those who saved it."""
        return self.slot is not None or self.place is Place.DROPPED

    def held(self) -> torch.UntypedStorage | None:
        """The device storage that has its bytes, if there is one."""
        return self.alive()

    def empty(self) -> None:
        """The tier has its bytes: the device's are not needed. Whoever else reads them keeps them alive."""

    def refill(self, tier: LowerTier) -> tuple[torch.UntypedStorage, Transfer]:
        """Start to bring its bytes back."""
        assert self.slot is not None, "what is away has a slot"
        return tier.read(self.slot)

    def lose(self) -> None:
        """Its bytes did not arrive."""
        self.alive = _nothing


@final
class StateEntry(Entry):
    """One absence of an optimizer state or gradient: its storage stays, as tensors lie on it, and only bytes leave."""

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
        """Its bytes are lost for good: give it as many others, so that using it is an error in numbers and no crash."""
        storage = self.alive()
        if storage is not None:
            self._tier.resize(storage, self.size_bytes, self.home)
            bytes_of(storage).fill_(SPOILT)


def _nothing() -> None:
    """A weak reference to what is gone."""


@dataclass(slots=True)
class Counters:
    """What one step moved. Times in nanoseconds, sizes in bytes."""

    swapped_out_bytes: int = 0
    swapped_back_bytes: int = 0
    stall_ns: int = 0
    swaps: int = 0
    recomputed_bytes: int = 0
    recompute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Happening:
    """Something the executor did, for whoever records a step. `start_ns` and `end_ns` are `perf_counter_ns`.

    Attributes:
        transfer: knows better when it was, once all work of the device is done; None where the times are known.
        op: for "recompute", which op of the trace ran again.
    """

    kind: str
    entry: Entry
    start_ns: int
    end_ns: int
    size_bytes: int = 0
    transfer: Transfer | None = None
    op: int = 0


def moved(kind: str, entry: Entry, transfer: Transfer) -> Happening:
    """A transfer of an entry has ended."""
    return Happening(kind, entry, transfer.start_ns, transfer.end_ns, transfer.size_bytes, transfer=transfer)


@dataclass(slots=True)
class Observer:
    """Calls for a recorder; all optional."""

    placed: Callable[[Entry, torch.UntypedStorage], None] | None = None
    emptied: Callable[[Entry, torch.UntypedStorage], None] | None = None
    stalled: Callable[[Happening], None] | None = None
    moved: Callable[[Happening], None] | None = None
    dropped: Callable[[Entry], None] | None = None
    recomputes: Callable[[bool], None] | None = None
