"""Optimizer states, or gradients, that are on a lower tier, and their windows in the plan."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import final

import torch

from elbowroom.engine.conductor import StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.optimizer_parts import Found
from elbowroom.errors import TierError
from elbowroom.torch_compat.core import storage_key
from elbowroom.units import NONE

Left = dict[Hashable, torch.UntypedStorage | None]
"""Key of what cannot come back -> host memory with its bytes; None if they are lost."""
Loan = tuple[weakref.ref[torch.UntypedStorage], weakref.ref[torch.UntypedStorage]]
"""A storage, and the host memory that was lent for it."""


@final
class AwayParts:
    """Entries of what is away, by a key that their owner chooses.

    Args:
        executor: moves their bytes.

    Attributes:
        entries: key -> entry.
        of_window: window of the plan -> entry; an entry of an observed step has no window.
        copies: key -> entry of a storage that is back, and whose bytes are still on the tier.
    """

    def __init__(self, executor: Executor) -> None:
        self.entries: dict[Hashable, StateEntry] = {}
        self.of_window: dict[int, StateEntry] = {}
        self.copies: dict[Hashable, StateEntry] = {}
        self._executor = executor
        self._lent: dict[Hashable, Loan] = {}

    def leave(self, key: Hashable, found: Found, n: int, known: StepPlan | None) -> None:
        """Start to move a storage to a lower tier. `n` is its window in the plan, or NONE in an observed step."""
        if self._executor.is_left_behind:
            return
        to = None if known is None else known.tier_of.get(n)
        entry = self.copies.pop(key, None)
        if entry is not None and entry.alive() is found.storage:
            self._executor.leave_again(entry, n)
        else:
            if entry is not None:
                self._executor.end(entry)
            entry = self._executor.leave(n, found.storage, to, self._lent_for(found.storage))
        self.entries[key] = entry
        if n != NONE:
            self.of_window[n] = entry

    def arrive(self, key: Hashable, *, keeps: bool = False) -> None:
        """Bring a storage back to the device, if it is away.

        Args:
            key: its key.
            keeps: whether the tier keeps its bytes, so that it may leave again without a write: see `changed`.
        """
        entry = self.entries.get(key)
        if entry is not None:
            self._executor.arrive(entry, keeps=keeps)
            del self.entries[key]
            if keeps and entry.slot is not None and entry.alive() is not None:
                self.copies[key] = entry
            if self.of_window.get(entry.n) is entry:
                del self.of_window[entry.n]

    def bring_back(self) -> None:
        """Bring all storages back to the device."""
        for key in list(self.entries):
            self.arrive(key)
        self.of_window.clear()

    def changed(self, key: Hashable) -> None:
        """Forget the bytes that the tier has kept of a storage: they are not those of the device any more."""
        entry = self.copies.pop(key, None)
        if entry is not None:
            self._executor.end(entry)

    def lend(self, key: Hashable) -> torch.UntypedStorage | None:
        """Return host memory with the bytes of a storage that is away; None if it cannot be had.

        For as long as somebody else has that memory, the storage leaves to it, so that it has the bytes of today.

        Args:
            key: the storage's key.
        """
        entry = self.entries[key]
        memory, storage = self._executor.lend(entry), entry.alive()
        if memory is not None and storage is not None:
            self._lent[key] = weakref.ref(storage), weakref.ref(memory)
        return memory

    def _lent_for(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Return the host memory that somebody still has for a storage; None if nobody does."""
        found = self._lent.get(storage_key(storage))
        # another storage may have got the key of one that is gone
        return found[1]() if found is not None and found[0]() is storage else None

    def show(self) -> None:
        """Copy what is on the device to the memory that somebody still has for it."""
        for key, (of_storage, of_memory) in list(self._lent.items()):
            storage, memory = of_storage(), of_memory()
            if storage is None or memory is None:
                del self._lent[key]
            elif key not in self.entries:
                memory.copy_(storage)

    def close(self, left: Left | None = None, most_bytes: int | None = None) -> Exception | None:
        """Bring all storages back. Returns the first error if the bytes of some are lost: a TierError, if there is one.

        Args:
            left: filled with those that the device has no room for: key -> host memory with their bytes, or None if
                there is no room for that either. Their storages stay empty. None if all must be back.
            most_bytes: what would take a CUDA device beyond this many allocated bytes does not come back either, nor
                what RAM has no room for; None for no limit.
        """
        for key in list(self.copies):
            self.changed(key)
        problem: TierError | None = None
        refused: RuntimeError | None = None
        for key, entry in self.entries.items():
            try:
                if not self._lent_beyond(key, entry, left, most_bytes):
                    self._arrive_or_lend(key, entry, left)
            except TierError as found:
                problem = problem or found
                self._executor.lose(entry)
            except RuntimeError as found:
                if left is None or self._executor.residence.asked_bytes(found) is None:
                    raise
                refused = refused or found
                left[key] = None
                self._executor.end(entry)
        self.entries.clear()
        self.of_window.clear()
        return problem or refused

    def _lent_beyond(self, key: Hashable, entry: StateEntry, left: Left | None, most_bytes: int | None) -> bool:
        """Leave a storage on the host if it would take the device beyond a limit. Returns whether it stays there."""
        if left is None or most_bytes is None or self._executor.lost:
            return False
        if entry.size_bytes <= self._executor.residence.room_at_end(most_bytes):
            return False
        self._executor.settle()
        memory = self._executor.lend(entry, from_disk=True)
        if memory is None:
            return False
        left[key] = memory
        self._executor.end(entry)
        return True

    def _arrive_or_lend(self, key: Hashable, entry: StateEntry, left: Left | None) -> None:
        try:
            self._executor.arrive(entry)
        except RuntimeError as problem:
            refused = isinstance(problem, torch.OutOfMemoryError) or self._executor.residence.asked_bytes(problem)
            if left is None or not refused:
                raise
            memory = self._executor.lend(entry, from_disk=True)
            if memory is None:
                raise
            left[key] = memory
            self._executor.end(entry)
