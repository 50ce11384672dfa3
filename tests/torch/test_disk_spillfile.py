"""The spill file: private, nameless, its room handed out in pages, and said no to in words."""

from __future__ import annotations

import errno
import gc
import os
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest

from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.errors import TierFailed, TierFull
from tests.torch.broken_disk import open_descriptors, refusing

MIB = 2**20


@pytest.fixture
def file(tmp_path: Path) -> SpillFile:
    return SpillFile(str(tmp_path))


def test_the_file_is_private_and_has_no_name(file: SpillFile, tmp_path: Path) -> None:
    # when
    found = os.fstat(file.descriptor)
    # then
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 0
    assert list(tmp_path.iterdir()) == []
    assert os.readlink(f"/proc/self/fd/{file.descriptor}").endswith("(deleted)")


def test_the_file_does_not_pass_to_child_programs(file: SpillFile) -> None:
    assert not os.get_inheritable(file.descriptor)


def test_its_descriptor_ends_with_it(tmp_path: Path) -> None:
    # given
    file = SpillFile(str(tmp_path))
    descriptor, inode = file.descriptor, os.fstat(file.descriptor).st_ino
    # when
    del file
    gc.collect()
    # then
    assert not _is_open(descriptor, inode)


def test_close_ends_the_descriptor_and_may_be_repeated(file: SpillFile) -> None:
    # given
    descriptor, inode = file.descriptor, os.fstat(file.descriptor).st_ino
    # when
    file.close()
    file.close()
    # then
    assert not _is_open(descriptor, inode)


def test_close_leaves_a_stranger_alone_who_took_the_descriptor(file: SpillFile, tmp_path: Path) -> None:
    # given: somebody closed it, and the number went to another file
    stranger = os.open(tmp_path / "stranger", os.O_RDWR | os.O_CREAT)
    os.dup2(stranger, file.descriptor)
    descriptor = file.descriptor
    # when
    file.close()
    # then
    os.fstat(descriptor)
    os.close(descriptor)
    os.close(stranger)


def test_without_nameless_files_the_name_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def no_tmpfile(path: Any, flags: int, *_: Any) -> int | None:
        return errno.EOPNOTSUPP if flags & os.O_TMPFILE == os.O_TMPFILE else None

    monkeypatch.setattr(os, "open", refusing(os.open, no_tmpfile))
    # when
    file = SpillFile(str(tmp_path))
    # then
    assert list(tmp_path.iterdir()) == []
    assert stat.S_IMODE(os.fstat(file.descriptor).st_mode) == 0o600
    assert os.fstat(file.descriptor).st_nlink == 0


def test_without_nameless_files_and_o_direct_no_name_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: Linux makes the file first and refuses O_DIRECT on it then
    real = os.open

    def picky(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no nameless files")
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, *mode))
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", picky)
    # when
    with pytest.warns(RuntimeWarning, match="refuses O_DIRECT"):
        file = SpillFile(str(tmp_path))
    # then
    assert not file.direct
    assert list(tmp_path.iterdir()) == []


def test_a_disk_gets_o_direct(file: SpillFile, tmp_path: Path) -> None:
    if _refuses_direct(tmp_path):
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT: set TMPDIR to a directory on a disk")
    assert file.direct
    assert _flags(file.descriptor) & os.O_DIRECT


def test_a_file_system_without_o_direct_gets_one_warning_and_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(
        os, "open", refusing(os.open, lambda _, flags, *m: errno.EINVAL if flags & os.O_DIRECT else None)
    )
    # when
    with pytest.warns(RuntimeWarning) as said:
        file = SpillFile(str(tmp_path))
    # then
    assert [str(each.message).count(f"{tmp_path} refuses O_DIRECT") for each in said] == [1]
    assert "spill_dir=" in str(said[0].message)
    assert not file.direct
    assert file.reserve(1).size_bytes == 1


def test_a_warning_that_is_an_error_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(
        os, "open", refusing(os.open, lambda _, flags, *m: errno.EINVAL if flags & os.O_DIRECT else None)
    )
    before = open_descriptors()
    # when
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            SpillFile(str(tmp_path))
    gc.collect()
    # then
    assert open_descriptors() == before


def test_a_directory_in_ram_is_used_whatever_it_says_to_o_direct() -> None:
    # given
    ram = Path("/dev/shm")
    if not ram.is_dir():
        pytest.skip("this system has no /dev/shm")
    before = set(ram.iterdir())
    # when
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        file = SpillFile(str(ram), capacity_bytes=MIB)
    # then: Linux accepts O_DIRECT there from 6.6 on
    assert len(said) == (0 if file.direct else 1)
    file.reserve(MIB)
    assert set(ram.iterdir()) == before
    file.close()


def test_a_missing_directory_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TierFailed, match=r"disk tier: .*/nowhere.*: No such file.*spill_dir=.*--spill-dir") as raised:
        SpillFile(str(tmp_path / "nowhere"))
    assert raised.value.tier == "disk"


def test_a_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    # given
    (tmp_path / "file").touch()
    # when / then
    with pytest.raises(
        TierFailed, match=r"disk tier: no spill file can be made in .*/file: Not a directory.*spill_dir="
    ):
        SpillFile(str(tmp_path / "file"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE])
def test_a_directory_that_takes_no_file_is_named_with_the_reason(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: root may write everywhere, so the refusal is the system call's
    monkeypatch.setattr(os, "open", refusing(os.open, lambda *_: number))
    # when / then
    with pytest.raises(TierFailed, match=f"{tmp_path}: {os.strerror(number)}.*spill_dir="):
        SpillFile(str(tmp_path))


def test_too_little_free_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: 10,000 blocks of 4 KiB are 39.1 MiB, one growth step is 64 MiB
    room = os.statvfs(tmp_path)
    fields = list(room)
    fields[0], fields[1], fields[4] = 4096, 4096, 10_000
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    # when / then
    with pytest.raises(TierFull, match=r"39\.1 MiB free, 64\.0 MiB are needed; free some space.*spill_dir=") as raised:
        SpillFile(str(tmp_path))
    assert raised.value.tier == "disk"
    with pytest.raises(TierFull, match=r"1\.00 GiB are needed"):
        SpillFile(str(tmp_path), capacity_bytes=2**30)
    SpillFile(str(tmp_path), capacity_bytes=MIB)


def _is_open(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def _flags(descriptor: int) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        return next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))


def _refuses_direct(directory: Path) -> bool:
    try:
        os.close(os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_DIRECT, 0o600))
    except OSError:
        return True
    return False
