"""A lower tier whose transfers end when the test says: races become sequences (a copier moved by hand).

Bytes are copied when a transfer *ends*, not when it starts, and a storage that is on its way back holds nothing but
`POISON` until then. So whatever lets go of a storage too early, or hands one out too early, shows up as wrong bytes.
"""

from __future__ import annotations

import threading
from typing import final

import torch

from elbowroom.engine.executor import Entry, Executor
from elbowroom.engine.saved_tensors import Handle
from elbowroom.engine.tiers.base import LowerTier, Slot, Transfer
from elbowroom.machine import TierName

POISON = 0xA5
PATIENCE_S = 10.0


@final
class HandTransfer(Transfer):
    """Ends by `end()` or `fail()`; `started_waiting` tells that somebody waits for it.

    Args:
        target, source: storages; the bytes go from one to the other when it ends well and nobody gave it up.
        ends_when_waited_for: for tests of one thread, which nobody could end while they wait.
    """

    def __init__(self, target: torch.UntypedStorage, source: torch.UntypedStorage, ends_when_waited_for: bool) -> None:
        super().__init__(source.nbytes())
        self._target: torch.UntypedStorage | None = target
        self._source: torch.UntypedStorage | None = source
        self._ends_when_waited_for = ends_when_waited_for
        self._ended = threading.Event()
        self.started_waiting = threading.Event()
        self.abandoned = False

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        self.started_waiting.set()
        if self._ends_when_waited_for and not self.done():
            self.end()
        assert self._ended.wait(PATIENCE_S), "somebody waits for a transfer that the test does not end"

    def abandon(self) -> None:
        self.abandoned = True

    def end(self) -> None:
        """The last byte has moved."""
        if not self.abandoned:
            assert self._target is not None
            assert self._source is not None
            self._target.copy_(self._source)
            self.start_ns, self.end_ns = 1, 2
        self._over()

    def fail(self, error: Exception) -> None:
        """It went wrong before a byte had moved."""
        self.error = error
        self._over()

    def _over(self) -> None:
        assert not self.done(), "a transfer ends once"
        self._target = self._source = None
        self._ended.set()


@final
class HandTier(LowerTier):
    """Copies in RAM. Room that was given back is handed out again first, poisoned, so that a stale slot is seen.

    Attributes:
        writes, reads: all transfers so far, in order.
        ends_when_waited_for: for the transfers from now on; see HandTransfer.
        before_reserve, before_read: emptied inside `reserve` and `read`, thus under the executor's lock.
        refusal: what `reserve` raises, if anything.
        closed: whether it was told to end.
    """

    name: TierName = "disk"

    def __init__(self, *, ends_when_waited_for: bool = False) -> None:
        self.ends_when_waited_for = ends_when_waited_for
        self.writes: list[HandTransfer] = []
        self.reads: list[HandTransfer] = []
        self.before_reserve: list[object] = []
        self.before_read: list[object] = []
        self.refusal: Exception | None = None
        self.closed = False
        self._room: dict[int, torch.UntypedStorage] = {}
        self._sizes: dict[int, int] = {}
        self._writing: dict[int, HandTransfer] = {}

    @property
    def held_bytes(self) -> int:
        return sum(self._sizes.values())

    def close(self) -> None:
        self.closed = True

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:
        self.before_reserve.clear()
        if self.refusal is not None:
            raise self.refusal
        offset = next(free for free in range(len(self._sizes) + 1) if free not in self._sizes)
        self._sizes[offset] = size_bytes
        self._room[offset] = _poisoned(size_bytes)
        return Slot(offset, size_bytes)

    def release(self, slot: Slot) -> None:
        assert slot.offset in self._sizes, "room is given back once"
        writing = self._writing.pop(slot.offset, None)
        assert writing is None or writing.done(), "room is not given back while it is written"
        del self._sizes[slot.offset], self._room[slot.offset]

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> HandTransfer:
        transfer = HandTransfer(self._room[slot.offset], storage, self.ends_when_waited_for)
        self._writing[slot.offset] = transfer
        self.writes.append(transfer)
        return transfer

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, HandTransfer]:
        self.before_read.clear()
        storage = _poisoned(slot.size_bytes)
        transfer = HandTransfer(storage, self._room[slot.offset], self.ends_when_waited_for)
        self.reads.append(transfer)
        return storage, transfer

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> HandTransfer:
        self.before_read.clear()
        self.resize(storage, slot.size_bytes, slot.home)
        storage.copy_(_poisoned(slot.size_bytes))
        transfer = HandTransfer(storage, self._room[slot.offset], self.ends_when_waited_for)
        self.reads.append(transfer)
        return transfer


def _poisoned(size_bytes: int) -> torch.UntypedStorage:
    return torch.full((size_bytes,), POISON, dtype=torch.uint8).untyped_storage()


def content(n: int) -> torch.Tensor:
    """What the n-th storage of a test holds."""
    return torch.arange(16, dtype=torch.float32) + 100 * n


def swapped(executor: Executor, n: int = 0) -> Handle:
    """A saved tensor whose storage is leaving and that nobody else holds; it is the only handle."""
    return save(executor, content(n), n)


def save(executor: Executor, tensor: torch.Tensor, n: int = 0) -> Handle:
    """What pack does with a tensor that the plan swaps."""
    storage = tensor.untyped_storage()
    entry = executor.find(storage)
    if entry is None:
        entry = executor.add(n, storage, tensor._version)
        try:
            executor.swap_out(entry)
        except BaseException:
            executor.handle_died(entry)  # an entry begins with one handle, and it gets none
            raise
    else:
        executor.handle_made(entry)
    return Handle(executor, entry, tensor)


def values(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage's bytes as the floats that `content` made."""
    return torch.empty(0, dtype=torch.float32).set_(storage, 0, (storage.nbytes() // 4,), (1,))  # pyright: ignore[reportArgumentType]


def nothing_left(executor: Executor) -> bool:
    """Whether the executor holds no entry, no write and no room."""
    return not executor._by_key and not executor._writes and executor.tier.held_bytes == 0


def same(storage: torch.UntypedStorage, entry: Entry) -> bool:
    """Whether these are the bytes that `content` gave this entry."""
    return torch.equal(values(storage), content(entry.n))
