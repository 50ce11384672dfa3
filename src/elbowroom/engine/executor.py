"""Executor: one table that says where every saved storage is, and the only code that changes it.

    on device ── plan says swap ──► leaving ── write ended ──► away ── planned or asked for ──► returning
        ▲                              │                                                            │
        └── wanted back before that ───┘◄─────────────────────── read ended ────────────────────────┘

    on device ── plan says recompute ──► dropped ── its recipe ran, as planned or when asked for ──► on device

Note: [Single writer]
Only code that holds the executor's lock moves an entry, and only at a tick: when autograd saves or reads back a tensor.
Worker threads fill their transfers and touch nothing else. So the bytes on the device depend on the order of the ticks.
They do not depend on the speed of a disk.

Note: [Versions]
A saved tensor that is changed in place before backward must raise. Autograd checks this itself only without hooks. So
every handle keeps a tensor without bytes that shares the saved tensor's version counter. The tensor that `read` returns
shares that counter too, so later readers see a change to it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar, final
from weakref import ref

import torch

from elbowroom.engine.entries import Counters, Entry, Happening, Observer, Place, Remake, StateEntry, moved
from elbowroom.engine.residence import RamResidence, Residence
from elbowroom.engine.storages import CPU, Blanks
from elbowroom.engine.tiers.base import LentSlot, LowerTier, SkippedWrite, Transfer
from elbowroom.engine.tiers.left_behind import LeftBehind
from elbowroom.machine import TierName
from elbowroom.torch_compat.core import storage_key

ON_DEVICE, LEAVING, AWAY, RETURNING, DROPPED = Place  # in this order, as looking one up takes time


Result = TypeVar("Result")


def no_room(_: int) -> bool:
    """Make no room: `Executor.make_room` while nothing may leave."""
    return False


@final
class Executor:
    """Moves saved storages between the device and one lower tier.

    Args:
        tier: the tier that they go to.
        residence: returns freed device memory to the system.
        device: the device that they leave.

    Attributes:
        make_room: frees about a size in bytes, if the device has no room for what comes back. Returns whether it did.
        refused: number of times that some work failed, as nothing more could leave.
    """

    def __init__(self, tier: LowerTier, residence: Residence | None = None, device: torch.device = CPU) -> None:
        self.tier = tier
        self.device = device
        self.residence = residence or RamResidence()
        self._counts = type(self.residence).look is not Residence.look
        self.blanks = Blanks(device)
        self.counters, self.observer = Counters(), Observer()
        self._by_key: dict[int, Entry] = {}
        self._writes: deque[Entry] = deque()
        self._writes_reaped = 0
        self._released: deque[Entry] = deque()
        self._lock = threading.Lock()
        self.make_room: Callable[[int], bool] = no_room
        self.refused = 0

    @property
    def lost(self) -> bool:
        """Whether the device no longer answers: nothing comes back to it."""
        return self.tier.streams is not None and self.tier.streams.lost

    @property
    def is_left_behind(self) -> bool:
        """Whether this process was forked from the training's, so that nothing moves here."""
        return isinstance(self.tier, LeftBehind)

    def leave_behind(self) -> None:
        """Move nothing from now on, in a process that was forked: Note: [Forked] in tiers/left_behind.py."""
        self.tier, self._lock = LeftBehind(self.tier.name), threading.Lock()
        self.make_room = no_room

    # Saving

    def find(self, storage: torch.UntypedStorage) -> Entry | None:
        """Return the entry of a saved storage whose bytes are on exactly this one now; None if there is none."""
        entry = self._by_key.get(storage_key(storage))
        is_its = entry is not None and entry.alive() is storage and not isinstance(entry, StateEntry)
        return entry if is_its else None

    def add(self, n: int, storage: torch.UntypedStorage, version: int) -> Entry:
        """Add an entry on the device, not held by the table. It counts one handle, which the caller makes."""
        entry = Entry(n, storage, version)
        self._by_key[entry.key] = entry
        return entry

    def may_leave(self, entry: Entry) -> None:
        """Note the present stream as an entry's own: it is being saved, and may be swapped out at a later tick."""
        entry.home = self.tier.home()

    def swap_out(self, entry: Entry, to: TierName | None = None, lent: LentSlot | None = None) -> None:
        """Start to write an entry; the table holds its storage until the write has ended. Raises TierFull.

        Args:
            entry: the entry.
            to: the tier of the plan.
            lent: the slot that it goes to; None for a new one.
        """
        storage = entry.alive()
        assert storage is not None, "an entry is swapped out while its saved tensor is at hand"
        with self._lock:
            if entry.home is None:
                entry.home = self.tier.home()
            entry.slot = slot = lent or self.tier.reserve(entry.size_bytes, to)
            slot.home = entry.home
            entry.out = self.tier.write(storage, slot)
            entry.device = storage
            entry.place = LEAVING
            self._writes.append(entry)
            self.counters.swaps += 1
        if self._released:
            self._after_lock()

    def drop(self, entry: Entry, remake: Remake) -> None:
        """Drop an entry's bytes at once. `remake` rebuilds them, unless somebody else has kept them alive till then."""
        entry.place = DROPPED
        entry.remake = remake
        self.residence.let_go(entry.size_bytes)

    def writes_done(self, count: int) -> None:
        """Wait until the first `count` writes of this step have ended, and free their device bytes."""
        writes = self._writes
        while writes:
            entry, out = writes[0], writes[0].out
            if out is None:
                continue  # another thread has just ended it
            if not out.done():
                if self._writes_reaped >= count:
                    break
                self._wait(entry, out)
            self._reap(entry, out)
        if self._released:
            self._after_lock()
        if self._counts:
            self.residence.look()

    def stream(self) -> Hashable:
        """Return the present stream of the calling thread; None if the device has no streams."""
        return None if self.tier.streams is None else self.tier.streams.current()

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return bool(self._writes)

    def writing_from(self, storage: torch.UntypedStorage) -> int:
        """Return how many writes under way, given up ones included, hold this storage."""
        return sum(entry.device is storage for entry in self._writes)

    def settle(self) -> None:
        """Wait for every write under way."""
        self.writes_done(self._writes_reaped + len(self._writes))

    @contextmanager
    def beside_the_plan(self) -> Iterator[None]:
        """Context whose writes the step's plan does not count. They end with it, and those under way end before."""
        self.settle()
        reaped = self._writes_reaped
        try:
            yield
        finally:
            self.settle()
            self._writes_reaped = reaped

    def stop(self) -> None:
        """End every write under way at once. Writes that are not done are given up, and their errors ignored."""
        for entry in self._writes:
            self.want(entry)
        while self._writes:
            with suppress(RuntimeError):
                self.writes_done(self._writes_reaped + 1)
        self._after_lock()

    def close(self) -> None:
        """End the executor: nothing more is saved. The tier closes now, or with the last handle if it holds bytes."""
        self.stop()
        if self.tier.held_bytes == 0 or self.lost:
            self.tier.close()

    def begin_step(self) -> None:
        """Start counting writes and bytes anew. Entries of earlier steps live on until their graphs die.

        Writes of the step before that are still under way have numbers before the first.
        """
        self.writes_done(self._writes_reaped)
        self._writes_reaped = -len(self._writes)
        self.counters = Counters()

    def expect(self, lower_bytes: Mapping[TierName, int]) -> None:
        """Prepare for another plan, which holds at most `lower_bytes` on each lower tier."""
        self.residence.empty()
        self.tier.fit(lower_bytes)

    def _reap(self, entry: Entry, out: Transfer) -> None:
        """Take the first write off the queue, as it has ended. Raises its error."""
        with self._lock:
            if entry.out is None:
                return  # another thread was faster
            self._writes.popleft()
            self._writes_reaped += 1
            entry.out = None
            if out.error is not None:
                self._only_here(entry)
                for other in self._writes:
                    other.out.muted = True  # pyright: ignore[reportOptionalMemberAccess]
            elif entry.place is LEAVING:
                self._let_go(entry)
            if entry.handles == 0:
                self._forget(entry)
            if out.error is not None and not out.muted:
                raise out.error
            if out.start_ns:
                self.counters.swapped_out_bytes += out.size_bytes
                if self.observer.moved:
                    self.observer.moved(moved("swap_out", entry, out))

    # Coming back

    def bring_back(self, entry: Entry) -> None:
        """Start the swap back of an entry, unless its bytes are still on the device."""
        self.with_room(lambda: self._bring_back(entry))

    def bring_back_early(self, entry: Entry) -> bool:
        """Start the swap back of an entry before it is read. Returns whether there was memory for it."""
        try:
            self._bring_back(entry)
        except RuntimeError as problem:
            if self.residence.asked_bytes(problem) is None:
                raise
            return False
        return True

    def with_room(self, work: Callable[[], Result]) -> Result:
        """Do some work, and again each time that it got no memory and something has left. It must bear that."""
        while True:
            try:
                return work()
            except RuntimeError as problem:
                asked_bytes = self.residence.asked_bytes(problem)
                if asked_bytes is None:
                    raise
                if not self.make_room(asked_bytes):
                    self.refused += 1
                    raise

    def _bring_back(self, entry: Entry) -> None:
        with self._lock:
            storage = entry.held()
            if entry.handles == 0 or entry.place is RETURNING:
                return
            if storage is not None:
                self._stay(entry, storage)
                return
            assert entry.place is AWAY, "bytes that are nowhere on the device are away"
            storage, entry.back = entry.refill(self.tier)
            self._place(entry, storage)
            entry.place = RETURNING
        if self._released:
            self._after_lock()
        if self.observer.placed:
            self.observer.placed(entry, storage)

    def rebuilt(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Take this storage as an entry's: a recipe has rebuilt the bytes on it."""
        with self._lock:
            if entry.handles == 0 or entry.alive() is not None:
                return
            self._place(entry, storage)
            entry.place = ON_DEVICE
            self.counters.recomputed_bytes += entry.size_bytes
        if self.observer.placed:
            self.observer.placed(entry, storage)

    def hold(self, entry: Entry) -> bool:
        """Keep the bytes of an entry on the device if they are still there. Returns whether they are."""
        with self._lock:
            storage = entry.alive()
            if storage is not None and entry.handles and entry.place is not RETURNING:
                self._stay(entry, storage)
            return storage is not None

    def want(self, entry: Entry) -> None:
        """Give up the write of an entry whose swap back is next, if it has not ended: the storage simply stays."""
        if entry.out is None:
            return
        with self._lock:
            storage = entry.alive()
            if entry.place is LEAVING and entry.out is not None and not entry.out.done() and storage is not None:
                self._stay(entry, storage)

    def read(self, entry: Entry) -> torch.UntypedStorage:
        """Return the device storage with an entry's bytes. Waits for them if they are not back yet."""
        storage = None
        while storage is None:  # another thread may free it in between
            if entry.place is AWAY or entry.place is LEAVING:
                self.bring_back(entry)
            if entry.place is DROPPED and entry.remake is not None:
                entry.remake.run()
            if entry.place is RETURNING:
                self._finish_return(entry)
            storage = entry.alive()
        entry.reads += 1
        if entry.arrived is not None:
            entry.arrived.used(storage)
        return storage

    def _place(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """List this storage as the one with an entry's bytes."""
        self._unlist(entry)
        entry.device = storage
        entry.alive = ref(storage)
        entry.key = storage_key(storage)
        self._by_key[entry.key] = entry

    def _finish_return(self, entry: Entry) -> None:
        back = entry.back
        if back is None:
            return
        if not back.done():
            self._wait(entry, back)
        with self._lock:
            if entry.back is back:  # no reader in another thread was first
                entry.back = None
                if back.error is None:
                    entry.place = ON_DEVICE
                    entry.arrived = back
                    self.counters.swapped_back_bytes += back.size_bytes
                    if self.observer.moved:
                        self.observer.moved(moved("swap_back", entry, back))
                else:
                    entry.place = AWAY
                    entry.device = None
                    self._unlist(entry)
                    entry.lose()
        if self._released:
            self._after_lock()
        if back.error is not None:
            raise back.error

    def _let_go(self, entry: Entry) -> None:
        """Drop the table's reference to the device bytes, as the tier has them. Readers keep them alive."""
        self.residence.let_go(entry.size_bytes)
        if self.observer.emptied and entry.device is not None:
            self.observer.emptied(entry, entry.device)
        entry.empty()
        entry.device = None
        entry.place = AWAY
        entry.written = True

    def _stay(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Keep a storage that is wanted back while still on the device. A write that has not ended is given up."""
        entry.device = storage
        entry.place = ON_DEVICE
        if entry.out is not None and not entry.out.done():
            entry.out.abandon()

    def keep(self, entry: Entry) -> None:
        """Hold the device bytes from now on and forget any copy: they have changed, and only they are right."""
        with self._lock:
            self._only_here(entry)

    def _only_here(self, entry: Entry) -> None:
        entry.device = entry.alive()
        entry.remake = None
        entry.place = ON_DEVICE

    # Optimizer states

    def leave(
        self,
        n: int,
        storage: torch.UntypedStorage,
        to: TierName | None = None,
        memory: torch.UntypedStorage | None = None,
    ) -> StateEntry:
        """Start to write an optimizer state. The bytes of its storage are freed afterwards. Raises TierFull.

        Args:
            n: its window in the plan.
            storage: its storage.
            to: the tier of the plan.
            memory: host memory that was lent for it, and that it goes to.
        """
        entry = StateEntry(n, storage, self.tier)
        self._by_key[entry.key] = entry
        try:
            self.swap_out(entry, to, None if memory is None else LentSlot(memory, entry.home))
        except BaseException:
            self.handle_died(entry)
            raise
        entry.alive = ref(storage, lambda _: self.handle_died(entry))
        return entry

    def arrive(self, entry: StateEntry, *, keeps: bool = False) -> None:
        """Bring a state's bytes back to the device, wait for them, and end the entry of its absence.

        Args:
            entry: the entry.
            keeps: whether its bytes stay on the tier too, for `leave_again`, and the entry does not end.
        """
        if entry.handles and entry.alive() is not None and not self.lost:
            self.bring_back(entry)
            if entry.place is RETURNING:
                self._finish_return(entry)
            if entry.arrived is not None and (storage := entry.alive()) is not None:
                entry.arrived.used(storage)
            is_whole = entry.written and entry.out is None and entry.slot is not None
            if not keeps or not is_whole or isinstance(entry.slot, LentSlot):
                self.end(entry)
            elif (storage := entry.alive()) is not None:
                entry.device = None
                entry.alive = ref(storage, lambda _: self.handle_died(entry))

    def leave_again(self, entry: StateEntry, n: int) -> None:
        """Let a storage leave whose bytes stayed on the tier, and have not changed since: nothing is written."""
        storage = entry.alive()
        assert storage is not None, "a storage that leaves is used by tensors"
        with self._lock:
            entry.n = n
            entry.out = SkippedWrite(entry.size_bytes)
            entry.device = storage
            entry.place = LEAVING
            self._writes.append(entry)

    def lend(self, entry: Entry, *, from_disk: bool = False) -> torch.UntypedStorage | None:
        """Return host memory with the bytes of an entry that is away, which code outside may have from now on.

        None if they are still on the device; or on the disk, unless they may be read `from_disk`.
        """
        with self._lock:
            if entry.place is not AWAY or entry.slot is None:
                return None
            if not isinstance(entry.slot, LentSlot):
                lent = self.tier.lend(entry.slot, from_disk=from_disk)
                if lent is None:
                    return None
                entry.slot = lent
            return entry.slot.memory

    def end(self, entry: StateEntry) -> None:
        """End the entry of a state whose bytes have another owner now."""
        entry.alive = lambda: None
        self.handle_died(entry)

    def lose(self, entry: StateEntry) -> None:
        """Give up a state's bytes, which cannot come back: fill its storage with NaN, and free its slot."""
        entry.spoil()
        self.end(entry)

    # Handles

    def handle_made(self, entry: Entry) -> None:
        """Count one more saved tensor on an existing entry."""
        entry.handles += 1

    def handle_died(self, entry: Entry) -> None:
        """Count one saved tensor less. Called from a finalizer, so it may interrupt any code, this class included."""
        if self._lock.acquire(blocking=False):
            try:
                self._one_handle_less(entry)
            finally:
                self._lock.release()
        else:
            self._released.append(entry)
        if self._released:
            self._after_lock()

    def _after_lock(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    self._one_handle_less(self._released.popleft())
            finally:
                self._lock.release()

    def _one_handle_less(self, entry: Entry) -> None:
        entry.handles -= 1
        if entry.handles:
            return
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]
        if entry.out is None:
            self._forget(entry)
        else:
            entry.out.abandon()

    def _unlist(self, entry: Entry) -> None:
        """Remove its storage from the table, unless a newer one is listed under the same address."""
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]

    def _forget(self, entry: Entry) -> None:
        """Free all that an unlisted entry holds. A swap back under way is given up; it keeps its own memory alive."""
        if entry.back is not None:
            entry.back.abandon()
            entry.back = None
        if entry.slot is not None:
            self.tier.release(entry.slot)
            entry.slot = None
        entry.device = entry.remake = None
        if self.observer.dropped:
            self.observer.dropped(entry)

    def _wait(self, entry: Entry, transfer: Transfer) -> None:
        if isinstance(self.tier, LeftBehind) and not transfer.done():  # no thread of it is here
            self.tier.refuse()
        if not transfer.blocks:
            transfer.wait()
            return
        start_ns = time.perf_counter_ns()
        transfer.wait()
        end_ns = time.perf_counter_ns()
        self.counters.stall_ns += end_ns - start_ns
        if self.observer.stalled:
            self.observer.stalled(Happening("stall", entry, start_ns, end_ns))
