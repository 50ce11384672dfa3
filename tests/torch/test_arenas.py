"""Host memory in arenas: sizes as asked for, budgets, what happens where memory cannot be page-locked."""

from __future__ import annotations

import gc

import pytest

from elbowroom.engine.tiers.arenas import GROWTH_BYTES, Arenas
from elbowroom.engine.tiers.ranges import Ranges, bytes_for
from elbowroom.errors import TierFull
from elbowroom.hardware import ram

MIB = 2**20


class Driver:
    """Page-locks what it is asked to, or refuses."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.locked: dict[int, int] = {}

    def pin(self, address: int, size_bytes: int) -> bool:
        if not self.refuses:
            self.locked[address] = size_bytes
        return not self.refuses

    def arenas(self, budget: int = 1 << 30, pinned: int = 1 << 30) -> Arenas:
        return Arenas(budget, pinned, self.pin, self.locked.pop)


def test_a_few_large_arenas_hold_many_storages() -> None:
    driver = Driver()
    arenas = driver.arenas()
    # 70 storages of 1 MiB and a page: 64 MiB hold 63 of them, and a second arena the rest
    slots = [arenas.reserve(MIB + 100) for _ in range(70)]
    assert list(driver.locked.values()) == [GROWTH_BYTES] * 2
    assert arenas.held_bytes == 70 * (MIB + 100)
    assert len({(slot.memory.data_ptr()) for slot in slots}) == 70
    assert all(slot.memory.numel() == MIB + 100 for slot in slots)


def test_room_that_was_given_back_is_used_again() -> None:
    arenas = Driver().arenas()
    first = arenas.reserve(8 * MIB)
    address = first.memory.data_ptr()
    arenas.release(first)
    assert arenas.reserve(8 * MIB).memory.data_ptr() == address
    assert arenas.size_bytes == GROWTH_BYTES


def test_the_memory_of_a_plan_is_one_arena_of_its_size_and_no_power_of_two() -> None:
    # given an observed step that took 64 MiB
    driver = Driver()
    arenas = driver.arenas()
    arenas.release(arenas.reserve(MIB))
    # when a plan needs 33 MiB
    arenas.fit(33 * MIB)
    # then it is rounded up to 2 MiB, and the other memory is unlocked and gone
    assert list(driver.locked.values()) == [34 * MIB]
    assert arenas.pinned_bytes == 34 * MIB
    # and it stays where more lies in it than there is room for in the memory of the next plan
    slot = arenas.reserve(3 * MIB)
    arenas.fit(2 * MIB)
    assert arenas.size_bytes == 34 * MIB
    arenas.release(slot)


def test_what_is_held_moves_to_the_memory_of_a_plan() -> None:
    # given two arenas of 64 MiB and 1 MiB in each of them that stays, as states that are away do
    driver = Driver()
    arenas = driver.arenas(budget=200 * MIB, pinned=70 * MIB)
    with pytest.warns(RuntimeWarning, match="not page-locked"):
        taken = [arenas.reserve(32 * MIB) for _ in range(3)]
    held = [arenas.reserve(MIB), arenas.reserve(MIB)]
    for number, slot in enumerate(held):
        slot.memory.fill_(number + 1)
    for slot in taken:
        arenas.release(slot)

    # when a plan needs 35 MiB
    arenas.fit(35 * MIB)

    # then that is all there is, page-locked, as what was is not any more; 35 MiB are 36 in whole 2 MiB
    assert list(driver.locked.values()) == [36 * MIB]
    assert (arenas.size_bytes, arenas.pinned_bytes, arenas.held_bytes) == (36 * MIB, 36 * MIB, 2 * MIB)
    for number, slot in enumerate(held):
        assert slot.memory.eq(number + 1).all()
        arenas.release(slot)
    assert arenas.reserve(36 * MIB).memory.numel() == 36 * MIB


def test_what_is_held_stays_where_there_is_no_room_for_both() -> None:
    arenas = Driver().arenas(budget=100 * MIB)
    held = arenas.reserve(MIB)
    address = held.memory.data_ptr()
    # 64 MiB are there; 62 more are above 100
    arenas.fit(62 * MIB)
    assert (arenas.size_bytes, held.memory.data_ptr()) == (GROWTH_BYTES, address)


@pytest.mark.parametrize(
    ("refuses", "pinned", "reason"), [(True, 1 << 30, "driver refuses"), (False, MIB, "1.0 MiB left")]
)
def test_memory_that_cannot_be_page_locked_is_used_and_said_once(refuses: bool, pinned: int, reason: str) -> None:
    arenas = Driver(refuses=refuses).arenas(pinned=pinned)
    with pytest.warns(RuntimeWarning, match=reason) as heard:
        slots = [arenas.reserve(48 * MIB) for _ in range(2)]
    assert len(heard) == 1
    assert arenas.pinned_bytes == 0
    assert arenas.size_bytes == 2 * GROWTH_BYTES
    assert slots[0].memory.numel() == 48 * MIB


def test_a_host_budget_that_is_full_names_itself() -> None:
    arenas = Driver().arenas(budget=16 * MIB)
    arenas.reserve(10 * MIB)  # the arena takes all of the budget
    with pytest.raises(TierFull, match=r"host tier: 8\.0 MiB more are needed, its budget of 16\.0 MiB has 0 B left"):
        arenas.reserve(8 * MIB)


def test_the_last_of_the_ram_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "free_bytes", lambda: 300 * MIB)
    # 300 MiB less 256 MiB that are left alone are less than an arena of 64 MiB
    with pytest.raises(TierFull, match=r"64\.0 MiB of RAM are needed and 300\.0 MiB are free"):
        Driver().arenas().reserve(MIB)


def test_page_locked_memory_is_unlocked_before_it_goes() -> None:
    driver = Driver()
    arenas = driver.arenas()
    slot = arenas.reserve(MIB)
    arenas.drop()
    assert driver.locked == {}
    # and where nobody drops it, with the last slot in it
    slot = arenas.reserve(MIB)
    del arenas
    gc.collect()
    assert len(driver.locked) == 1
    del slot
    gc.collect()
    assert driver.locked == {}


def test_ranges_that_touch_become_one() -> None:
    ranges = Ranges(3 * 4096)
    starts = [ranges.take(4096) for _ in range(3)]
    assert starts == [0, 4096, 8192]
    assert ranges.take(1) is None
    for start in (0, 8192, 4096):
        ranges.give_back(start, 4096)
    assert ranges.unused


def test_stays_that_do_not_overlap_share_their_room() -> None:
    # 8 KiB from 0 to 2, 4 KiB from 1 to 3; the 8 KiB from 2 to 4 take the place of the first
    assert bytes_for([(0, 2, 8192), (1, 3, 4096), (2, 4, 8192)]) == 12288
