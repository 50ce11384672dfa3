"""Parameters that code asks for past operators: by their address, their storage, or to write them to a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradients import Gradients
from elbowroom.engine.handed_addresses import Memory, ReadStorage
from elbowroom.engine.movable_parameters import MovableParameters
from elbowroom.engine.raw_reads import Use
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.torch_compat.core import storage_key


@final
class AskedParameters:
    """Brings back what code asks for, or gives it memory with the same bytes.

    Args:
        executor: moves bytes.
        conductor: says which work is our own.
        movable: the parameters that may move.
        away: those that are away.
        gradients: their gradients, which code may ask for as well.
        arrive: brings a parameter back, by the key of its storage.
        is_between: tells whether this thread is between two steps.
        is_saving: tells whether `torch.save` asks, which gets the bytes in another way.
    """

    def __init__(
        self,
        executor: Executor,
        conductor: Conductor,
        movable: MovableParameters,
        away: AwayParts,
        gradients: Gradients,
        arrive: Callable[[int], None],
        is_between: Callable[[], bool],
        is_saving: Callable[[], bool],
    ) -> None:
        self._executor = executor
        self._conductor = conductor
        self._movable = movable
        self._away = away
        self._gradients = gradients
        self._arrive = arrive
        self._is_between = is_between
        self._is_saving = is_saving

    def asked(self, tensor: torch.Tensor, use: Use) -> Memory | None:
        """Bring a parameter back, as code takes its address or its storage. See RawReads."""
        try:
            storage = RAW_STORAGE(tensor)
        except (RuntimeError, NotImplementedError):
            return None
        handed = self._gradients.handed
        if use in ("array", "ever") and self._gradients.lent:
            self._gradients.lent.forget(storage)
        if handed and (key := handed.key_of(storage)) is not None:
            handed.give(key)
        elif storage in self._movable:
            return self._asked_for(storage, use)
        elif use in ("array", "ever") and storage.nbytes() >= self._movable.min_size_bytes:
            self._handed_out(storage, use)
        return None

    def _handed_out(self, storage: torch.UntypedStorage, use: Use) -> None:
        in_ram, addresses = use == "array" and self._executor.device.type == "cpu", self._movable.addresses
        (addresses.array if in_ram else addresses.keep)(storage)

    def _asked_for(self, storage: torch.UntypedStorage, use: Use) -> Memory | None:
        if self._is_saving():
            return None
        if use == "reader" and (memory := self._for_reader(storage)) is not None:
            return memory
        key = storage_key(storage)
        if key in self._away.entries:
            with self._conductor.aside():
                self._arrive(key)
        if use in ("array", "ever"):
            self._handed_out(storage, use)
        if use != "reader":
            self._movable.changed(key)
        return None

    def _for_reader(self, storage: torch.UntypedStorage) -> Memory | None:
        """Return memory with the bytes of a parameter that is away, for code that reads them before the next step."""
        if not self._is_between():
            return None
        if self._executor.device.type != "cpu":
            return self._named(storage)
        key = storage_key(storage)
        found = self._movable.addresses.mapped.get(key)
        if found is None and key in self._away.entries:
            with self._conductor.aside():
                self._executor.settle()
                found = self._away.lend(key)
            if found is not None:
                self._movable.addresses.mapped[key] = found
        if found is None:
            self._movable.addresses.read(storage)
        return found

    def _named(self, storage: torch.UntypedStorage) -> ReadStorage | None:
        """Return what a reader gets for a parameter on a GPU that is away, or was when it was first asked for."""
        key, named = storage_key(storage), self._movable.addresses.named
        entry = self._away.entries.get(key)
        if key not in named and entry is not None:
            named[key] = ReadStorage(key, entry.size_bytes, partial(self._there, entry.alive))
        if key not in named:
            self._movable.addresses.read(storage)
        return named.get(key)

    def _there(self, alive: Callable[[], torch.UntypedStorage | None]) -> torch.UntypedStorage:
        """Bring a storage back for code that asks for more than its address and its size."""
        storage = alive()
        if storage is None:
            raise RuntimeError("given the storage of a parameter that is gone; take storages while their tensors exist")
        key = storage_key(storage)
        if key in self._away.entries:
            with self._conductor.aside():
                self._arrive(key)
        self._movable.addresses.read(storage)
        self._movable.changed(key)
        return storage
