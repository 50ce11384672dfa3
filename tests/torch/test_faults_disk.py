"""Disks that fill up, fail and are tampered with in the middle of a training: an error in words, no wrong number."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

import elbowroom as er
from elbowroom.errors import TierFailed, TierFull
from elbowroom.run.room import Room
from tests.torch.broken_disk import answering, failing, open_descriptors, own_threads, until
from tests.torch.broken_training import (
    OBSERVED,
    PLANNED,
    Moment,
    Seen,
    allowed_bytes,
    broken,
    settle,
    setup,
    take_all_room,
    tier_of,
)
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal, assert_swapped, seeded, train, train_within
from tests.torch.small_disk import small_disk_in

pytestmark = pytest.mark.timeout(30)
STEPS = pytest.mark.parametrize("at", [OBSERVED, PLANNED], ids=["observed", "planned"])


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    """No thread, no open file and no name, whatever broke."""
    gc.collect()
    threads, descriptors = own_threads(), open_descriptors()
    yield
    gc.collect()
    assert until(lambda: own_threads() <= threads)
    assert open_descriptors() <= descriptors
    assert list(tmp_path.iterdir()) == []


def check(seen: Seen, at: int, error: type[er.ElbowroomError], *words: str) -> None:
    """The right error, at the right step, with nothing wrong before it or after it."""
    assert seen.error is error
    assert seen.tier == "disk"
    for word in ("disk tier: ", *words, "spill_dir="):
        assert word in seen.text
    assert len(seen.losses) == at
    assert seen.mode == ("plan" if at == PLANNED else "")
    assert seen.goes_on_as_plain


@STEPS
def test_a_full_disk(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def breaks(room: Room) -> None:
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        if at == PLANNED:
            take_all_room(room)

    # when
    seen = broken(tmp_path, at, "before", breaks, mends=monkeypatch.undo)
    # then
    check(seen, at, TierFull, "no room for", "No space left on device", "free some space", "raise the device budget")


CALLS = {
    "a write that fails": ("pwrite", failing(errno.EIO), "writing in", "Input/output error"),
    "a write that stops short": ("pwrite", answering(0), "a write in", "came up short: 0 of"),
    "a read that fails": ("preadv", failing(errno.EIO), "reading in", "Input/output error"),
    "a read that stops short": ("preadv", answering(0), "a read in", "came up short: 0 of"),
}


@STEPS
@pytest.mark.parametrize("fault", CALLS)
def test_a_disk_that_does_not_do_its_work(fault: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    name, answer, *words = CALLS[fault]

    def breaks(_: Room) -> None:
        monkeypatch.setattr(os, name, answer)

    # when
    seen = broken(tmp_path, at, "before", breaks, mends=monkeypatch.undo)
    # then
    check(seen, at, TierFailed, *words)
    assert seen.held_bytes == 0


@STEPS
def test_a_write_that_fails_once(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: later writes are fine again, the error must come out all the same
    real, failed = os.pwrite, []

    def once(*args: object) -> int:
        if not failed:
            failed.append(args[0])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args)  # pyright: ignore[reportArgumentType]

    # when
    seen = broken(tmp_path, at, "before", lambda _: monkeypatch.setattr(os, "pwrite", once), mends=monkeypatch.undo)
    # then
    check(seen, at, TierFailed, "writing in", "Input/output error")


def cut_short(room: Room) -> None:
    settle(room)
    os.ftruncate(tier_of(room).file.descriptor, 0)


def close_it(room: Room) -> None:
    settle(room)
    os.close(tier_of(room).file.descriptor)


def put_another_in_its_place(room: Room) -> None:
    settle(room)
    descriptor = tier_of(room).file.descriptor
    other = os.open("/dev/zero", os.O_RDWR)
    os.dup2(other, descriptor)
    os.close(other)


@pytest.mark.parametrize(
    ("breaks", "at", "moment"),
    [
        (cut_short, OBSERVED, "between"),  # before that it is empty and cannot be cut
        (cut_short, PLANNED, "before"),
        (cut_short, PLANNED, "between"),
        (close_it, OBSERVED, "before"),
        (close_it, PLANNED, "between"),
        (put_another_in_its_place, OBSERVED, "before"),
        (put_another_in_its_place, PLANNED, "between"),
    ],
)
def test_a_spill_file_that_is_tampered_with(
    breaks: Callable[[Room], None], at: int, moment: Moment, tmp_path: Path
) -> None:
    # given
    numbers: list[int] = []

    def tamper(room: Room) -> None:
        numbers.append(tier_of(room).file.descriptor)
        breaks(room)

    # when
    seen = broken(tmp_path, at, moment, tamper)
    # then
    if breaks is put_another_in_its_place:
        os.close(numbers[0])
    assert seen.error is TierFailed
    assert seen.tier == "disk"
    assert "disk tier: " in seen.text
    assert len(seen.losses) == at
    assert seen.goes_on_as_plain


def test_the_spill_file_cannot_be_removed_because_it_has_no_name(tmp_path: Path) -> None:
    # given
    names: list[str] = []
    links: list[str] = []

    def look(room: Room) -> None:
        names.extend(os.listdir(tmp_path))
        links.append(os.readlink(f"/proc/self/fd/{tier_of(room).file.descriptor}"))

    # when
    rooms: list[Room] = []
    training = seeded(lambda: setup(PLANNED, "between", lambda: look(rooms[0])))
    with er.within("1GiB", spill_dir=tmp_path, min_size=MIN_SIZE_BYTES) as room:
        rooms.append(room)
        for i in range(PLANNED + 1):
            training.step(i)
    # then
    assert names == []
    assert links[0].startswith(f"{tmp_path}/")
    assert links[0].endswith("(deleted)")


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """70 MiB; the spill file grows by 64 MiB."""
    with small_disk_in(tmp_path_factory, "70m") as directory:
        yield directory


@STEPS
def test_a_real_file_system_that_is_full(at: int, small_disk: Path) -> None:
    # given
    def fill(room: Room) -> None:
        if at == PLANNED:
            take_all_room(room)
        with (small_disk / "ballast").open("wb") as ballast:
            free = os.statvfs(small_disk)
            os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize)

    # when
    seen = broken(small_disk, at, "before", fill)
    # then
    check(seen, at, TierFull, "No space left on device")
    # then: all that is left is the ballast
    assert os.listdir(small_disk) == ["ballast"]


def test_a_disk_too_small_to_begin_with_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: 10,000 blocks of 4 KiB are 39.1 MiB
    fields = list(os.statvfs(tmp_path))
    fields[0], fields[1], fields[4] = 4096, 4096, 10_000
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    # when / then
    with pytest.raises(TierFull, match=r"39\.1 MiB free, 64\.0 MiB are needed"), er.within("1GiB", spill_dir=tmp_path):
        pytest.fail("it is open")


def test_a_directory_that_does_not_exist_is_said_before_the_first_step(tmp_path: Path) -> None:
    with (
        pytest.raises(TierFailed, match=r"disk tier: .*/nowhere.*No such file.*"),
        er.within("1GiB", spill_dir=tmp_path / "nowhere"),
    ):
        pytest.fail("it is open")


def test_after_a_fault_the_same_process_trains_within_a_budget_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    def breaks(_: Room) -> None:
        monkeypatch.setattr(os, "preadv", failing(errno.EIO))

    broken(tmp_path, PLANNED, "between", breaks, mends=monkeypatch.undo)
    # when
    outcome, room = train_within(setup, spill_dir=tmp_path)
    # then
    assert_swapped(room)
    assert_equal(outcome, train(setup))


@pytest.mark.filterwarnings("ignore:elbowroom. saved storage:RuntimeWarning")
@pytest.mark.parametrize("fault", ["a full disk", "a write that fails", "a read that fails"])
@pytest.mark.parametrize("at", [OBSERVED, PLANNED], ids=["observed", "planned"])
def test_a_step_that_is_done_again_in_the_same_room_gives_the_plain_numbers(
    at: int, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: the disk is well again after the error
    name, number = {
        "a full disk": ("posix_fallocate", errno.ENOSPC),
        "a write that fails": ("pwrite", errno.EIO),
        "a read that fails": ("preadv", errno.EIO),
    }[fault]
    errors: list[str] = []
    rooms: list[Room] = []

    def breaks() -> None:
        if not errors:
            monkeypatch.setattr(os, name, failing(number))
            if at == PLANNED and fault == "a full disk":
                take_all_room(rooms[0])

    training = seeded(lambda: setup(at, "before", breaks))
    losses: list[Tensor] = []
    # when
    with er.within(allowed_bytes(), spill_dir=tmp_path, min_size=MIN_SIZE_BYTES) as room:
        rooms.append(room)
        while len(losses) < 5:
            try:
                losses.append(training.step(len(losses)).clone())
            except (TierFull, TierFailed) as error:
                errors.append(str(error))
                monkeypatch.undo()
    # then
    assert len(errors) == 1
    assert_equal(Outcome(losses, training.state()), train(setup))
