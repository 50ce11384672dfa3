"""States seen: optimizer states, gradients and the parts of a step that use them, from the notes of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from elbowroom.capture.recording.profiler_stream import RecordedBlock
from elbowroom.trace import Category, Part, PartKind

_KINDS: dict[Category, PartKind] = {"optimizer_state": "optimizer", "gradient": "accumulation", "parameter": "use"}
_IN_ORDER = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A part in the making."""

    first_op: int
    end_op: int
    storages: tuple[int, ...]
    category: Category
    released: tuple[int, ...] = ()


@final
class StatesSeen:
    """Parts in the making, and the storage of each absence.

    Attributes:
        away: storages that have left and are not back.
        before: by identity of an entry, what was away before the recording and has no storage yet.
    """

    def __init__(self) -> None:
        self.away: set[int] = set()
        self.before: dict[int, RecordedBlock] = {}
        self._first_op = 0
        self._parts: list[_Seen] = []
        self._absent: dict[int, int] = {}

    def begins(self, op: int) -> None:
        """Begin a part before an op."""
        self._first_op = op

    def ends(self, op: int, storages: Sequence[int], category: Category) -> None:
        """End the part before an op; it used these storages."""
        self._parts.append(_Seen(self._first_op, op, tuple(dict.fromkeys(storages)), category))

    def released(self, gradients: Sequence[int]) -> None:
        """Note the gradients that the part that has just ended is the last to use."""
        self._parts[-1] = replace(self._parts[-1], released=tuple(dict.fromkeys(gradients)))

    def used(self, first_op: int, end_op: int, parameters: Sequence[int]) -> None:
        """Note an op that used parameters."""
        self._parts.append(_Seen(first_op, end_op, tuple(dict.fromkeys(parameters)), "parameter"))

    def asked(self, gradient: int) -> None:
        """Note that Python read a gradient: that may happen at any time, so the gradient does not move."""
        parts = [each for each in self._parts if gradient not in each.storages]
        self._parts = [replace(each, released=tuple(s for s in each.released if s != gradient)) for each in parts]

    def left(self, entry: object, storage: int) -> None:
        """Note that a storage has left."""
        self._absent[id(entry)] = storage
        self.away.add(storage)

    def of(self, entry: object) -> int | None:
        """Return the storage of an absence; None if that began before the recording."""
        return self._absent.get(id(entry))

    def named(self, first_op: int) -> list[int]:
        """Return the storages of parts from an op on: states, gradients, parameters. So none renumbers those before."""
        inside = [each for each in self._parts if each.first_op >= first_op]
        in_order = sorted(inside, key=lambda each: _IN_ORDER.index(each.category))
        return [storage for each in in_order for storage in each.storages]

    def renumber(self, new: Sequence[int]) -> None:
        """Give the storages new numbers."""
        self._absent = {entry: new[storage] for entry, storage in self._absent.items()}
        self._parts = [
            replace(each, storages=tuple(new[s] for s in each.storages), released=tuple(new[s] for s in each.released))
            for each in self._parts
        ]

    def parts(self) -> tuple[Part, ...]:
        """Return the parts as a trace has them."""
        return tuple(
            Part(
                first_op=each.first_op,
                end_op=each.end_op,
                storages=(*each.storages, *(s for s in each.released if s not in each.storages)),
                kind=_KINDS[each.category],
            )
            for each in self._parts
        )
