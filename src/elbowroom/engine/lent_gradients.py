"""Gradients that code of the user has been given while they could be away: each leaves again once nothing refers to it.

Note: [Lent]
A loop over parameters reads one `grad` after the other: hand-written clipping, a norm for the log, noise. While
operators are seen (Note: [Parameters away] in parameters.py), each gradient comes back whole as it is asked for, as any
code may use it. When the code asks for another one, those before leave again that nothing refers to any more: no
variable, list or view, and no graph of autograd. What leaves is written anew, as code past torch's operators may have
changed it. One whose address was taken stays. So do all of them as soon as operators run on another stream: a kernel
there may still use one that nothing refers to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from typing import NamedTuple, final

import torch

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.executor import Executor
from elbowroom.engine.optimizer_parts import Found
from elbowroom.errors import TierFull
from elbowroom.torch_compat.core import storage_key
from elbowroom.units import NONE

MOST = 4
"""Gradients that are looked at when the next one is asked for: a loop still has the last one or two."""


class _One(NamedTuple):
    """A gradient that was lent: its storage, its window in the plan, and the stream that it belongs to."""

    storage: weakref.ref[torch.UntypedStorage]
    n: int
    home: Hashable


@final
class LentGradients:
    """Gradients that code has now, and that leave again.

    Args:
        away: what is away, by keys of the owner.
        executor: moves it.
        conductor: knows the plan of the step.
        found: returns the gradient with a key, and whether something refers to it; None if it cannot move.
    """

    def __init__(
        self,
        away: AwayParts,
        executor: Executor,
        conductor: Conductor,
        found: Callable[[Hashable], Found | None],
    ) -> None:
        self._away, self._executor, self._conductor, self._found = away, executor, conductor, found
        self._lent: dict[Hashable, _One] = {}

    def __bool__(self) -> bool:
        return bool(self._lent)

    def lend(self, key: Hashable) -> bool:
        """Bring one back for code that asks for it. Returns False if it would not leave again: then it is not brought.

        Those that were lent before leave.
        """
        self.leave_again()
        entry = self._away.entries[key]
        storage = entry.alive()
        if storage is None or entry.home != self._executor.stream():
            return False
        one = _One(weakref.ref(storage), entry.n, entry.home)
        with self._conductor.aside(), self._executor.beside_the_plan():
            self._away.arrive(key)
        self._lent[key] = one
        while len(self._lent) > MOST:  # code keeps them
            del self._lent[next(iter(self._lent))]
        return True

    def leave_again(self, but: Collection[Hashable] = ()) -> None:
        """Let those leave that nothing refers to, but for some, which are forgotten."""
        for key in but:
            self._lent.pop(key, None)
        leaving = [(key, found, one) for key, one in self._lent.items() if (found := self._free(key, one)) is not None]
        if not leaving:
            return
        known = self._conductor.known()
        with self._conductor.aside(), self._executor.beside_the_plan(), suppress(TierFull):  # then they stay
            while leaving:
                key, found, one = leaving.pop()
                del self._lent[key]
                self._away.changed(key)
                self._away.leave(key, found, NONE if known is None else one.n, known)

    def _free(self, key: Hashable, one: _One) -> Found | None:
        """Return a gradient if it is the one that was lent, and nothing refers to it."""
        found = self._found(key)
        same = found is not None and one.storage() is found.storage and key not in self._away.entries
        return found if found is not None and same and not found.held and one.home == self._executor.stream() else None

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Let one stay, as its address was taken."""
        for key, one in list(self._lent.items()):
            other = one.storage()
            if other is not None and storage_key(other) == storage_key(storage):
                del self._lent[key]

    def note_stream(self) -> None:
        """Let all stay if operators run on another stream than theirs."""
        stream = self._executor.stream()
        if any(one.home != stream for one in self._lent.values()):
            self._lent.clear()

    def clear(self) -> None:
        """Forget all: they are there, and leave as planned."""
        self._lent.clear()
