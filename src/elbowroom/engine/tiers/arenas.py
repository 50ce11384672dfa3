"""Host memory for swapped storages: a few large arenas, page-locked within a budget, that hand out slots.

torch's own pinned memory comes in powers of two and is never given back. Arenas are separate mappings, registered with
the driver. So they have exactly the requested size, and go back to the system when dropped. If the budget or the driver
does not allow page-locking, an arena is ordinary memory. Copies to it work the same, and are slower.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

import torch

from elbowroom.engine.tiers.base import Slot
from elbowroom.engine.tiers.ranges import Ranges, whole_pages
from elbowroom.errors import TierFull
from elbowroom.hardware import ram
from elbowroom.notices import Once, warn_once
from elbowroom.units import format_bytes

GROWTH_BYTES = 64 << 20
"""Least size of an arena, if the budgets have room for it: page-locking is slow, so it has to be rare."""
HUGE_PAGE_BYTES = 2 << 20
SPARE_RAM_BYTES = 256 << 20
"""RAM that is left free: the system kills a process that takes the last of it."""


@final
class Arena:
    """One mapping of memory; `drop` undoes its page-lock."""

    def __init__(self, size_bytes: int) -> None:
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError, AttributeError):  # a kernel built without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.memory = torch.frombuffer(mapping, dtype=torch.uint8)
        self.address = self.memory.data_ptr()
        self.ranges = Ranges(size_bytes)
        self.pinned = False
        self.drop: Callable[[], object] = _nothing

    def unlock(self) -> None:
        """Undo its page-lock; its bytes stay."""
        self.drop()
        self.pinned, self.drop = False, _nothing

    @property
    def size_bytes(self) -> int:
        """Size of the mapping."""
        return self.ranges.size_bytes


@final
class ArenaSlot(Slot):
    """Slot in an arena; its bytes begin at `address`."""

    __slots__ = ("address", "arena")

    def __init__(self, arena: Arena, offset: int, size_bytes: int) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        self.home = None
        self.arena = arena
        self.address = arena.address + offset

    @property
    def memory(self) -> torch.Tensor:
        """Bytes of the slot."""
        return self.arena.memory[self.offset : self.offset + self.size_bytes]

    def move(self, arena: Arena, offset: int) -> None:
        """Move its bytes to another arena or offset."""
        before = self.memory
        self.arena, self.offset, self.address = arena, offset, arena.address + offset
        self.memory.copy_(before)


@final
class Arenas:
    """All arenas of a run. Not thread-safe: callers hold the executor's lock, or that of the staging memory.

    Args:
        budget_bytes: budget of all arenas.
        pinned_bytes: budget of those that are page-locked.
        pin: page-locks (address, size_bytes); False if the driver refuses.
        unpin: undoes the page-lock of an address.
        once: warnings given so far, shared with other arenas; None for these alone.
    """

    def __init__(
        self,
        budget_bytes: int,
        pinned_bytes: int,
        pin: Callable[[int, int], bool],
        unpin: Callable[[int], object],
        once: Once | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.pinned_budget_bytes = pinned_bytes
        self.held_bytes = 0
        self._pin, self._unpin = pin, unpin
        self._arenas: list[Arena] = []
        self._slots: set[ArenaSlot] = set()
        self._once = Once() if once is None else once

    @property
    def size_bytes(self) -> int:
        """Size of all arenas."""
        return sum(arena.size_bytes for arena in self._arenas)

    @property
    def pinned_bytes(self) -> int:
        """Size of the arenas that are page-locked."""
        return sum(arena.size_bytes for arena in self._arenas if arena.pinned)

    def reserve(self, size_bytes: int) -> ArenaSlot:
        """Reserve a slot for a storage. Raises TierFull if the budget or the computer has no room left."""
        found = self._take(size_bytes)
        if found is None:
            self._grow(whole_pages(size_bytes))
            found = self._take(size_bytes)
        assert found is not None, "a new arena has room for what it was made for"
        return found

    def try_reserve(self, size_bytes: int) -> ArenaSlot | None:
        """Reserve a slot, or return None if the budget has no room left. Raises TierFull if the computer has none."""
        found = self._take(size_bytes)
        if found is None and self.size_bytes + whole_pages(size_bytes) <= self.budget_bytes:
            return self.reserve(size_bytes)
        return found

    def _take(self, size_bytes: int) -> ArenaSlot | None:
        for arena in self._arenas:
            start = arena.ranges.take(size_bytes)
            if start is not None:
                self.held_bytes += size_bytes
                slot = ArenaSlot(arena, start, size_bytes)
                self._slots.add(slot)
                return slot
        return None

    def release(self, slot: ArenaSlot) -> None:
        """Free a slot."""
        slot.arena.ranges.give_back(slot.offset, slot.size_bytes)
        self.held_bytes -= slot.size_bytes
        self._slots.discard(slot)

    def fit(self, size_bytes: int) -> None:
        """Replace all arenas by one of this size, and move what is held there. No copy may be under way.

        If the budget or the computer has no room for both at once, arenas with something in them stay.
        """
        wanted = _round_up(size_bytes)
        if [arena.size_bytes for arena in self._arenas] == [wanted]:
            return
        for arena in [each for each in self._arenas if each.ranges.unused]:
            arena.drop()
            self._arenas.remove(arena)
        if wanted and wanted + self.size_bytes <= self.budget_bytes:
            self._move_to(wanted)

    def _move_to(self, size_bytes: int) -> None:
        """Replace all arenas by one of this size with all that is held, if there is room in it."""
        before, slots = self._arenas, sorted(self._slots, key=lambda slot: -slot.size_bytes)
        if sum(whole_pages(slot.size_bytes) for slot in slots) > size_bytes:
            return
        for arena in before:
            arena.unlock()
        self._arenas = []
        try:
            self._add(size_bytes)
        except TierFull:
            self._arenas = before
            if not slots:
                raise
            return
        for slot in slots:
            start = self._arenas[0].ranges.take(slot.size_bytes)
            assert start is not None, "it is empty, and has room for all of them"
            slot.move(self._arenas[0], start)

    def drop(self) -> None:
        """Give all arenas back to the system. No copy may be under way."""
        for arena in self._arenas:
            arena.drop()
        self._arenas.clear()

    def _grow(self, size_bytes: int) -> None:
        left = self.budget_bytes - self.size_bytes
        if size_bytes > left:
            raise TierFull(
                f"host tier: {format_bytes(size_bytes)} more are needed, its budget of "
                f"{format_bytes(self.budget_bytes)} has {format_bytes(max(0, left))} left; raise it (host=...), or "
                "raise the device budget so that less must be swapped",
                tier="host",
            )
        self._add(max(size_bytes, min(_round_up(max(size_bytes, GROWTH_BYTES)), left)))

    def _add(self, size_bytes: int) -> None:
        free_bytes = ram.free_bytes()
        if size_bytes + SPARE_RAM_BYTES > free_bytes:
            raise TierFull(
                f"host tier: {format_bytes(size_bytes)} of RAM are needed and {format_bytes(free_bytes)} are free, of "
                f"which {format_bytes(SPARE_RAM_BYTES)} are left alone; free some, or raise the device budget so that "
                "less must be swapped",
                tier="host",
            )
        arena = Arena(size_bytes)
        room = self.pinned_budget_bytes - self.pinned_bytes
        arena.pinned = size_bytes <= room and self._pin(arena.address, size_bytes)
        if arena.pinned:
            # Undone with its last slot at the latest: memory that is unmapped while page-locked stays locked.
            arena.drop = undo = weakref.finalize(arena, self._unpin, arena.address)
            undo.atexit = False  # at exit the driver undoes it; a forked process must not
        else:
            self._warn(size_bytes, room)
        self._arenas.append(arena)

    def _warn(self, size_bytes: int, room: int) -> None:
        reason = "the driver refuses" if size_bytes <= room else f"its budget has {format_bytes(max(0, room))} left"
        warn_once(
            self._once,
            "page-locked",
            f"elbowroom: {format_bytes(size_bytes)} of host memory are not page-locked ({reason}): copies to them are "
            "slower and hold up the host. Raise pinned=... in the budget or the system's limit (ulimit -l)",
        )


def _nothing() -> None:
    """Do nothing: memory that is not page-locked needs no unlocking."""


def cuda_pinning() -> tuple[Callable[[int, int], bool], Callable[[int], object]]:
    """Return the functions of the CUDA driver that page-lock memory and undo it."""
    cudart: Any = torch.cuda.cudart()
    return lambda address, size_bytes: _register(cudart, address, size_bytes) == 0, cudart.cudaHostUnregister


def _register(cudart: Any, address: int, size_bytes: int) -> int:
    return int(cudart.cudaHostRegister(address, size_bytes, 1))  # 1: for every context of the process


def _round_up(size_bytes: int) -> int:
    return (size_bytes + HUGE_PAGE_BYTES - 1) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
