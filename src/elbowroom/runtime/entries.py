"""What the executor's table holds, and what it tells of its moves."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import final

import torch

from elbowroom.runtime._torch_compat import storage_key
from elbowroom.runtime.tiers import Slot, Transfer


class State(enum.Enum):
    """Where the bytes of a saved storage are."""

    ON_DEVICE = "on device"
    LEAVING = "leaving"
    AWAY = "away"
    RETURNING = "returning"


@final
class Entry:
    """One saved storage.

    Attributes:
        n: it is the n-th saved storage of its step.
        state: where its bytes are.
        device: strong reference to the device storage, where the table must hold it; others may hold it too.
        alive: weak reference to the last device storage that held the bytes.
        version: version counter at the first save; a later save at another version means changed bytes.
        handles: saved tensors that lie on it and still exist.
        reads: times it was read in this step.
        home: the stream it was saved on, where there are streams.
        arrived: the swap back that brought the bytes it has now.
    """

    __slots__ = (
        "__weakref__", "alive", "arrived", "back", "device", "handles", "home", "key", "n", "out", "reads",
        "size_bytes", "slot", "state", "version",
    )  # fmt: skip

    def __init__(self, n: int, storage: torch.UntypedStorage, version: int, home: Hashable = None) -> None:
        self.n = n
        self.size_bytes = storage.nbytes()
        self.state = State.ON_DEVICE
        self.device: torch.UntypedStorage | None = None
        self.alive: Callable[[], torch.UntypedStorage | None] = weakref.ref(storage)
        self.key = storage_key(storage)
        self.version = version
        self.handles = 1
        self.reads = 0
        self.home = home
        self.arrived: Transfer | None = None
        self.slot: Slot | None = None
        self.out: Transfer | None = None
        self.back: Transfer | None = None


@dataclass(slots=True)
class Counters:
    """What one step moved. Times in nanoseconds, sizes in bytes."""

    swapped_out_bytes: int = 0
    swapped_back_bytes: int = 0
    stall_ns: int = 0
    swaps: int = 0
    unplanned_reads: int = 0


@dataclass(frozen=True, slots=True)
class Happening:
    """Something the executor did, for whoever records a step. `start_ns` and `end_ns` are `perf_counter_ns`.

    Attributes:
        transfer: knows better when it was, once all work of the device is done; None where the times are known.
    """

    kind: str
    entry: Entry
    start_ns: int
    end_ns: int
    size_bytes: int = 0
    transfer: Transfer | None = None


@dataclass(slots=True)
class Observer:
    """Calls for a recorder; all optional."""

    placed: Callable[[Entry, torch.UntypedStorage], None] | None = None
    stalled: Callable[[Happening], None] | None = None
    moved: Callable[[Happening], None] | None = None
    dropped: Callable[[Entry], None] | None = None
