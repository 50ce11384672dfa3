"""Optimizer states and the parts of optimizers' steps, as a recording tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from elbowroom.trace import Part


@final
class StatesSeen:
    """Parts in the making, and which storage each absence is of."""

    def __init__(self) -> None:
        self._first_op = 0
        self._parts: list[tuple[int, int, tuple[int, ...]]] = []
        self._absent: dict[int, int] = {}

    def begins(self, op: int) -> None:
        """A part begins before an op."""
        self._first_op = op

    def ends(self, op: int, storages: Sequence[int]) -> None:
        """It ends before another, and used these storages."""
        self._parts.append((self._first_op, op, tuple(dict.fromkeys(storages))))

    def left(self, entry: object, storage: int) -> None:
        """A storage has left."""
        self._absent[id(entry)] = storage

    def of(self, entry: object) -> int | None:
        """The storage of an absence; None where it began before the recording."""
        return self._absent.get(id(entry))

    def named(self, first_op: int) -> list[int]:
        """Storages of the parts from an op on."""
        return [storage for begin, _, storages in self._parts for storage in storages if begin >= first_op]

    def renumber(self, new: Sequence[int]) -> None:
        """Storages have other numbers from here on."""
        self._absent = {entry: new[storage] for entry, storage in self._absent.items()}
        self._parts = [(begin, end, tuple(new[each] for each in storages)) for begin, end, storages in self._parts]

    def parts(self) -> tuple[Part, ...]:
        """As a trace has them."""
        return tuple(Part(first_op=begin, end_op=end, storages=storages) for begin, end, storages in self._parts)
