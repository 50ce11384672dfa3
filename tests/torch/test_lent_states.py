"""Host memory that a state dict has of optimizer states that are away: whose it is, and what it shows."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.optimizer_parts import Found
from elbowroom.torch_compat.core import storage_key

SIZE_BYTES = 64
TRIES = 1000


class Entry:
    """Absence of a storage."""

    def __init__(self, n: int, storage: torch.UntypedStorage) -> None:
        self.n = n
        self.alive = weakref.ref(storage)


class Moves:
    """Stands in for the executor. `to` is the lent memory that each storage left to."""

    is_left_behind = False

    def __init__(self) -> None:
        self.to: list[torch.UntypedStorage | None] = []

    def leave(self, n: int, storage: torch.UntypedStorage, _tier: object, memory: torch.UntypedStorage | None) -> Entry:
        self.to.append(memory)
        return Entry(n, storage)

    def lend(self, entry: Entry) -> torch.UntypedStorage:
        return filled(entry.n)

    def arrive(self, entry: Entry, *, keeps: bool = False) -> None:
        """All bytes are there already."""


def filled(value: int) -> torch.UntypedStorage:
    return torch.full((SIZE_BYTES,), value, dtype=torch.uint8).untyped_storage()


def parts() -> tuple[AwayParts, Moves]:
    moves: Any = Moves()
    return AwayParts(moves), moves


def leave(away: AwayParts, storage: torch.UntypedStorage) -> None:
    found = Found(storage=storage, dtype=torch.uint8, size_bytes=storage.nbytes(), held=False)
    away.leave(storage_key(storage), found, 0, None)


def test_a_storage_leaves_to_the_memory_that_was_lent_for_it_while_somebody_has_that() -> None:
    # given
    (away, moves), storage = parts(), filled(1)
    key = storage_key(storage)
    leave(away, storage)
    memory = away.lend(key)
    away.arrive(key)
    # when it leaves while the memory is held, and once it is not
    leave(away, storage)
    away.arrive(key)
    held = moves.to[-1] is memory
    moves.to.clear()
    del memory
    leave(away, storage)
    # then
    assert held
    assert moves.to == [None]


def test_a_storage_that_has_the_place_of_one_that_is_gone_leaves_to_memory_of_its_own() -> None:
    # given memory that somebody has, of a storage that its optimizer has replaced
    (away, moves), storage = parts(), filled(1)
    key = storage_key(storage)
    leave(away, storage)
    memory = away.lend(key)
    away.arrive(key)
    del storage
    # when another storage gets the same key
    others: list[torch.UntypedStorage] = []
    while storage_key(other := filled(2)) != key:
        others.append(other)
        assert len(others) < TRIES, "torch does not use that place again"
    leave(away, other)
    away.arrive(key)
    away.show()
    # then the memory goes on to show what the first one held
    assert memory is not None
    assert moves.to[-1] is None
    assert set(memory.tolist()) == {0}


def test_what_stays_on_the_device_is_shown() -> None:
    # given lent memory of a storage that is back, and has changed
    (away, _), storage = parts(), filled(1)
    key = storage_key(storage)
    leave(away, storage)
    memory = away.lend(key)
    away.arrive(key)
    storage.copy_(filled(3))
    # when
    away.show()
    # then
    assert memory is not None
    assert set(memory.tolist()) == {3}
    # and what is away is not looked at
    storage.copy_(filled(4))
    leave(away, storage)
    away.show()
    assert set(memory.tolist()) == {3}
