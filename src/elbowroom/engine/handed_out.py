"""Gradients that clipping has got while they are away: each comes back for every operator that uses it.

Note: [Handed out]
Torch's own clipping and gradient scaler read `parameter.grad` of all parameters before they use any. Both use gradients
by operators alone. While these are seen (Note: [Parameters away] in parameters.py), a gradient that is away is handed
out to them without its bytes. Any other code gets it whole, as it may be an extension. An operator on
its storage has it brought back, and it leaves again at once. If the operator does not write to it, nothing is copied
out. So at most one part of a list of gradients is on the device: Note: [Lists in parts]. Autograd would keep what an
operator saves: such an operator brings it back for good, and so does one on another stream.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import torch

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.entries import Place
from elbowroom.engine.executor import Executor
from elbowroom.engine.optimizer_parts import Found
from elbowroom.engine.touched import plain_in
from elbowroom.errors import TierFull
from elbowroom.torch_compat.core import storage_key
from elbowroom.units import NONE

Again = tuple[Hashable, torch.UntypedStorage, int]
"""What leaves again: its key, its storage, and its window in the plan."""


TRUSTED = frozenset({"torch.nn.utils.clip_grad", "torch.amp.grad_scaler"})
"""Modules that use gradients by operators alone. Checked in the source of 2.11.0 and 2.13.0."""


def is_for_torch() -> bool:
    """Tell whether one of the trusted modules has called the package."""
    frame = sys._getframe()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    name = __name__
    while frame is not None and name.startswith("elbowroom."):
        frame, name = frame.f_back, frame.f_globals.get("__name__", "")
    return name in TRUSTED


@final
class HandedOut:
    """Gradients that code may have, and whose storages may be without bytes.

    Args:
        away: what is away, by keys of the owner.
        executor: moves it.
        conductor: knows the plan of the step.
    """

    def __init__(self, away: AwayParts, executor: Executor, conductor: Conductor) -> None:
        self._away, self._executor, self._conductor = away, executor, conductor
        self._keys: dict[int, tuple[weakref.ref[torch.UntypedStorage], Hashable]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, key: Hashable) -> None:
        """Note that code gets what is away under this key."""
        storage = self._away.entries[key].alive()
        if storage is not None:
            self._keys[storage_key(storage)] = weakref.ref(storage), key

    def forget_gone(self) -> None:
        """Forget those that are freed."""
        self._keys = {number: found for number, found in self._keys.items() if found[0]() is not None}

    def forget(self) -> None:
        """Forget all, as the run ends: their owner sees to what is away."""
        self._keys.clear()

    def key_of(self, storage: torch.UntypedStorage) -> Hashable | None:
        """Return the key of a storage that was handed out and is away; None for any other one."""
        ref, key = self._keys.get(storage_key(storage), (None, None))
        entry = self._away.entries.get(key)
        return key if ref is not None and ref() is storage and entry is not None and entry.alive() is storage else None

    def give(self, key: Hashable) -> None:
        """Bring one back for good, as code takes its address or its storage."""
        with self._conductor.aside():
            self._away.arrive(key)

    def bring_back(self) -> None:
        """Bring all of them back: operators are seen no more."""
        if not self._keys:
            return
        with self._conductor.aside():
            for ref, key in list(self._keys.values()):
                storage = ref()
                if storage is not None and self.key_of(storage) is not None:
                    self._away.arrive(key)
        self._keys.clear()

    @contextmanager
    def there(self, args: Iterable[Any], *, changes: bool) -> Iterator[None]:
        """Context in which those among an operator's arguments are on the device.

        Args:
            args: the arguments.
            changes: whether the operator writes to one.
        """
        found, saves = self._among(args)
        if not found:
            yield
            return
        with self._conductor.aside(), self._executor.beside_the_plan():
            again = [one for key in found if (one := self._arrive(key, found[key], saves, changes)) is not None]
        try:
            yield
        finally:
            with self._conductor.aside(), self._executor.beside_the_plan():
                self._leave(again)

    def _among(self, args: Iterable[Any]) -> tuple[dict[Hashable, torch.UntypedStorage], bool]:
        """Return which of them an operator's arguments have, and whether autograd may save one of the arguments.

        No other storage is kept: a reference to it would count as one of the user's.
        """
        found, requires = dict[Hashable, torch.UntypedStorage](), False
        for tensor, storage in plain_in(args):
            requires = requires or tensor.requires_grad
            if (key := self.key_of(storage)) is not None:
                found[key] = storage
        return found, requires and torch.is_grad_enabled()

    def _arrive(self, key: Hashable, storage: torch.UntypedStorage, saves: bool, changes: bool) -> Again | None:
        """Bring one back. Returns what is to leave again; None if it stays, as its plan wants it there from now on."""
        entry = self._away.entries[key]
        leaves = entry.place is Place.AWAY and not saves and entry.home == self._executor.stream()
        n = entry.n
        self._away.arrive(key, keeps=leaves and not changes)
        return (key, storage, n) if leaves else None

    def _leave(self, again: list[Again]) -> None:
        known = self._conductor.known()
        with suppress(TierFull):  # then it stays
            for key, storage, n in again:
                found = Found(storage, torch.uint8, storage.nbytes(), held=False)
                self._away.leave(key, found, NONE if known is None else n, known)
