"""Room in the spill file: pages handed out, given back and merged; its growth and its limit; a file tampered with."""

from __future__ import annotations

import errno
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.engine.tiers.base import Slot
from elbowroom.engine.tiers.ranges import PAGE_BYTES, whole_pages
from elbowroom.engine.tiers.spillfile import GROWTH_BYTES, SpillFile
from elbowroom.errors import TierFailed, TierFull
from tests.torch.broken_disk import refusing

MIB = 2**20


@pytest.fixture
def file(tmp_path: Path) -> SpillFile:
    return SpillFile(str(tmp_path))


def test_room_is_whole_pages_one_after_the_other(file: SpillFile) -> None:
    # when
    slots = [file.reserve(size_bytes) for size_bytes in (1, 4096, 4097, 10_000)]
    # then: 1, 1, 2 and 3 pages
    assert [slot.offset // PAGE_BYTES for slot in slots] == [0, 1, 2, 4]
    assert file.held_bytes == 1 + 4096 + 4097 + 10_000


def test_free_neighbours_become_one_range(file: SpillFile) -> None:
    # given: three slots of 4 pages, and one more after them
    slots = [file.reserve(4 * PAGE_BYTES) for _ in range(4)]
    # when: first, third, then the one between them
    for index in (0, 2, 1):
        file.release(slots[index])
    # then: 3 x 4 pages from the start
    assert file.reserve(12 * PAGE_BYTES).offset == 0
    assert file.reserve(PAGE_BYTES).offset == 16 * PAGE_BYTES


def test_the_smallest_range_that_fits_is_used(file: SpillFile) -> None:
    # given: free ranges of 3 pages at page 0 and of 2 pages at page 4
    wide, _, narrow, _ = (file.reserve(pages * PAGE_BYTES) for pages in (3, 1, 2, 1))
    file.release(wide)
    file.release(narrow)
    # when / then
    assert file.reserve(2 * PAGE_BYTES).offset == 4 * PAGE_BYTES
    assert file.reserve(2 * PAGE_BYTES).offset == 0


@given(st.lists(st.tuples(st.integers(1, 5 * PAGE_BYTES), st.integers(0, 2)), min_size=1, max_size=60), st.randoms())
def test_room_never_overlaps_and_is_all_free_again_in_the_end(steps: list[tuple[int, int]], random: Any) -> None:
    # given: two thirds of the steps reserve, one third releases
    file = SpillFile(capacity_bytes=4 * MIB)
    held: list[Slot] = []
    highest = 0
    # when
    for size_bytes, kind in steps:
        if kind or not held:
            held.append(file.reserve(size_bytes))
        else:
            file.release(held.pop(random.randrange(len(held))))
        # then
        ends = sorted((slot.offset, slot.offset + whole_pages(slot.size_bytes)) for slot in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert all(start % PAGE_BYTES == 0 for start, _ in ends)
        assert file.held_bytes == sum(slot.size_bytes for slot in held)
        highest = max([highest, *(end for _, end in ends)])
        assert os.fstat(file.descriptor).st_size >= highest
    # when
    random.shuffle(held)
    for slot in held:
        file.release(slot)
    # then: one range, as large as the file ever was used
    assert file.held_bytes == 0
    assert file.reserve(highest).offset == 0
    file.close()


def test_the_file_grows_in_large_steps_and_has_its_blocks_from_the_disk(file: SpillFile) -> None:
    # when
    file.reserve(PAGE_BYTES)
    # then
    assert os.fstat(file.descriptor).st_size == GROWTH_BYTES
    # when
    file.reserve(GROWTH_BYTES)
    # then: what was free after the first page does not count, as it is one page short
    assert os.fstat(file.descriptor).st_size == 2 * GROWTH_BYTES


def test_the_disk_budget_bounds_the_file_to_the_page(tmp_path: Path) -> None:
    # given: 10 pages and a half
    file = SpillFile(str(tmp_path), capacity_bytes=10 * PAGE_BYTES + 2048)
    slots = [file.reserve(PAGE_BYTES) for _ in range(10)]
    # when / then
    with pytest.raises(TierFull, match=r"disk tier: no room for 44\.0 KiB in .*its budget is 42\.0 KiB.*spill_dir="):
        file.reserve(1)
    assert os.fstat(file.descriptor).st_size == 10 * PAGE_BYTES
    # when
    file.release(slots[3])
    # then
    assert file.reserve(PAGE_BYTES).offset == slots[3].offset


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_is_full_is_an_error_when_room_is_asked_for(
    number: int, file: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    real = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", refusing(real, lambda *_: number))
    # when / then
    with pytest.raises(
        TierFull, match=f"no room for 4.0 KiB.*{os.strerror(number)}.*free some space.*spill_dir=.*budget"
    ):
        file.reserve(1)
    assert file.held_bytes == 0
    # when: somebody frees some space
    monkeypatch.setattr(os, "posix_fallocate", real)
    # then
    assert file.reserve(1).offset == 0


def test_a_disk_with_less_than_a_growth_step_is_used_to_its_end(
    file: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: room for 3 pages
    def small(descriptor: int, offset: int, length: int) -> int | None:
        return errno.ENOSPC if offset + length > 3 * PAGE_BYTES else None

    monkeypatch.setattr(os, "posix_fallocate", refusing(os.posix_fallocate, small))
    # when
    slots = [file.reserve(PAGE_BYTES) for _ in range(3)]
    # then
    assert [slot.offset for slot in slots] == [0, PAGE_BYTES, 2 * PAGE_BYTES]
    with pytest.raises(TierFull):
        file.reserve(PAGE_BYTES)


def test_a_file_system_without_fallocate_still_gets_the_length(
    file: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(os, "posix_fallocate", refusing(os.posix_fallocate, lambda *_: errno.EOPNOTSUPP))
    # when
    file.reserve(1)
    # then
    assert os.fstat(file.descriptor).st_size == GROWTH_BYTES


def test_a_file_that_cannot_grow_for_another_reason_has_failed(
    file: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refusing(os.posix_fallocate, lambda *_: errno.EIO))
    with pytest.raises(TierFailed, match=r"growing the spill file.*Input/output error.*spill_dir="):
        file.reserve(1)


def test_a_file_cut_short_behind_our_back_is_noticed(file: SpillFile) -> None:
    # given
    file.reserve(PAGE_BYTES)
    file.check()
    # when
    os.ftruncate(file.descriptor, 0)
    # then
    with pytest.raises(TierFailed, match=r"cut to 0 B \(it had 64\.0 MiB\).*what was swapped is lost"):
        file.check()


def test_growth_between_two_looks_is_no_cut(file: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: another thread makes the file grow while this one asks for its size
    file.reserve(PAGE_BYTES)
    fstat = os.fstat

    def fstat_then_growth(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        monkeypatch.setattr(os, "fstat", fstat)
        file.reserve(GROWTH_BYTES)
        return found

    monkeypatch.setattr(os, "fstat", fstat_then_growth)
    # when / then
    file.check()
    assert os.fstat is fstat, "the file did not grow in between"


def test_a_file_cut_short_is_noticed_before_it_grows_again(file: SpillFile) -> None:
    # given
    file.reserve(PAGE_BYTES)
    os.ftruncate(file.descriptor, 0)
    # when: growing would give it its length back, with zeros where the bytes were
    with pytest.raises(TierFailed, match="what was swapped is lost"):
        file.reserve(GROWTH_BYTES)
    # then
    with pytest.raises(TierFailed):
        file.check()


def test_a_descriptor_that_was_closed_or_taken_over_is_noticed(file: SpillFile, tmp_path: Path) -> None:
    # given
    file.reserve(PAGE_BYTES)
    with open(tmp_path / "other", "wb+") as other:
        other.truncate(2 * GROWTH_BYTES)
        # when
        os.dup2(other.fileno(), file.descriptor)
    # then
    with pytest.raises(TierFailed, match="was replaced"):
        file.check()
    # when
    os.close(file.descriptor)
    # then
    with pytest.raises(TierFailed, match="Bad file descriptor"):
        file.check()


def test_a_file_of_the_same_number_on_another_file_system_is_noticed(
    file: SpillFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    file.reserve(PAGE_BYTES)
    real = os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[stat.ST_DEV] += 1
        return os.stat_result(fields)

    # when
    monkeypatch.setattr(os, "fstat", elsewhere)
    # then
    with pytest.raises(TierFailed, match="was replaced"):
        file.check()
