"""The disk tier: any size at any address comes back as it was; whatever the disk does wrong comes back as an error."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elbowroom.engine.tiers.base import Slot, Transfer
from elbowroom.engine.tiers.disk import CHUNK_BYTES, DiskTier
from elbowroom.engine.tiers.ranges import PAGE_BYTES
from elbowroom.errors import TierFailed, TierFull
from tests.torch.broken_disk import answering, failing, open_descriptors, own_threads, until

MIB = 2**20


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(str(tmp_path))
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskTier]:
    """One tier for all examples of a property."""
    tier = DiskTier(str(tmp_path_factory.mktemp("spill")))
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def buffered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskTier]:
    """A tier on a file system that refuses O_DIRECT."""
    real = os.open

    def picky(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real(path, flags, *mode)

    directory = str(tmp_path_factory.mktemp("spill"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", picky)
        with pytest.warns(RuntimeWarning, match="refuses O_DIRECT"):
            tier = DiskTier(directory)
    yield tier
    tier.close()


def random_bytes(size_bytes: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=generator)


def at_address(content: torch.Tensor, offset: int) -> torch.UntypedStorage:
    """A storage with this content that lies `offset` bytes after the start of a page."""
    memory = mmap.mmap(-1, offset + len(content) + PAGE_BYTES)
    tensor = torch.frombuffer(memory, dtype=torch.uint8, offset=offset, count=len(content))
    tensor.copy_(content)
    assert tensor.untyped_storage().data_ptr() % PAGE_BYTES == offset
    return tensor.untyped_storage()


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.tensor([], dtype=torch.uint8).set_(storage)  # pyright: ignore[reportArgumentType]


def written(tier: DiskTier, storage: torch.UntypedStorage) -> tuple[Slot, Transfer]:
    slot = tier.reserve(storage.nbytes())
    transfer = tier.write(storage, slot)
    transfer.wait()
    return slot, transfer


def read(tier: DiskTier, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:
    storage, transfer = tier.read(slot)
    transfer.wait()
    return storage, transfer


SIZES = st.one_of(st.integers(1, 3 * PAGE_BYTES), st.integers(1, 2 * CHUNK_BYTES + 100))
OFFSETS = st.sampled_from([0, 1, 8, 64, 511, 512, 4095])


@settings(max_examples=25)
@given(size_bytes=SIZES, offset=OFFSETS, seed=st.integers(0, 2**31))
@example(size_bytes=1, offset=0, seed=0)
@example(size_bytes=PAGE_BYTES, offset=0, seed=1)
@example(size_bytes=CHUNK_BYTES, offset=0, seed=2)
@example(size_bytes=CHUNK_BYTES + 1, offset=0, seed=3)
@example(size_bytes=CHUNK_BYTES + PAGE_BYTES, offset=64, seed=4)
def test_any_size_at_any_address_comes_back_bit_for_bit(
    shared: DiskTier, size_bytes: int, offset: int, seed: int
) -> None:
    # given
    content = random_bytes(size_bytes, seed)
    slot, out = written(shared, at_address(content, offset))
    # when
    storage, back = read(shared, slot)
    # then
    assert out.error is None
    assert back.error is None
    assert storage.nbytes() == size_bytes
    assert torch.equal(as_bytes(storage), content)
    shared.release(slot)


@settings(max_examples=10)
@given(size_bytes=SIZES, offset=OFFSETS, seed=st.integers(0, 2**31))
@example(size_bytes=1, offset=0, seed=0)
@example(size_bytes=CHUNK_BYTES + 1, offset=1, seed=1)
def test_any_size_comes_back_without_o_direct_too(buffered: DiskTier, size_bytes: int, offset: int, seed: int) -> None:
    # given
    content = random_bytes(size_bytes, seed)
    slot, _ = written(buffered, at_address(content, offset))
    # when
    storage, back = read(buffered, slot)
    # then
    assert not buffered.file.direct
    assert back.error is None
    assert torch.equal(as_bytes(storage), content)
    buffered.release(slot)


def test_storages_written_at_once_do_not_mix(tier: DiskTier) -> None:
    # given: sizes on both sides of a page and of a chunk
    contents = [random_bytes(size, size) for size in (1, 4095, 4097, 70_000, MIB, CHUNK_BYTES - 1, CHUNK_BYTES + 4095)]
    slots = [tier.reserve(len(content)) for content in contents]
    # when
    out = [tier.write(c.untyped_storage(), slot) for c, slot in zip(contents, slots, strict=True)]
    for transfer in out:
        transfer.wait()
    back = [tier.read(slot) for slot in slots]
    # then
    for content, (storage, transfer) in zip(contents, back, strict=True):
        transfer.wait()
        assert torch.equal(as_bytes(storage), content)


def test_room_that_was_used_before_gives_only_the_new_bytes(tier: DiskTier) -> None:
    # given
    slot, _ = written(tier, torch.full((MIB,), 7, dtype=torch.uint8).untyped_storage())
    tier.release(slot)
    content = random_bytes(MIB - 100, 3)
    # when
    again, _ = written(tier, content.untyped_storage())
    # then
    assert again.offset == slot.offset
    assert torch.equal(as_bytes(read(tier, again)[0]), content)


def test_a_storage_that_came_back_can_be_written_to_and_written_out(tier: DiskTier) -> None:
    # given
    content = random_bytes(MIB + 5, 1)
    slot, _ = written(tier, content.untyped_storage())
    storage, _ = read(tier, slot)
    # when
    as_bytes(storage).add_(1)
    second, _ = written(tier, storage)
    # then
    assert torch.equal(as_bytes(read(tier, second)[0]), content + 1)


def test_the_memory_that_comes_back_is_aligned_to_a_page(tier: DiskTier) -> None:
    slot, _ = written(tier, random_bytes(10_001, 0).untyped_storage())
    assert read(tier, slot)[0].data_ptr() % PAGE_BYTES == 0


def test_a_transfer_tells_when_its_bytes_moved(tier: DiskTier) -> None:
    # given
    before_ns = time.perf_counter_ns()
    # when
    _, transfer = written(tier, random_bytes(2 * CHUNK_BYTES, 0).untyped_storage())
    # then
    assert before_ns <= transfer.start_ns < transfer.end_ns <= time.perf_counter_ns()
    assert transfer.size_bytes == 2 * CHUNK_BYTES


def hold(monkeypatch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """Make every pwrite (or preadv) wait for an event."""
    go, real = threading.Event(), getattr(os, name)

    def held(*args: Any) -> int:
        assert go.wait(10)
        return real(*args)

    monkeypatch.setattr(os, name, held)
    return go


def test_an_abandoned_write_skips_what_has_not_started(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: both threads are in their first chunk
    go = hold(monkeypatch, "pwrite")
    calls: list[int] = []
    storage = random_bytes(8 * CHUNK_BYTES, 0).untyped_storage()
    slot = tier.reserve(storage.nbytes())
    transfer = tier.write(storage, slot)
    waiting = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: calls.append(1) or waiting(*args))
    # when
    transfer.abandon()
    go.set()
    transfer.wait()
    # then: at most the two chunks that had started
    assert transfer.done()
    assert transfer.error is None
    assert len(calls) <= 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL])
def test_a_write_that_fails_says_which_tier_and_what_to_do(
    number: int, tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(os, "pwrite", failing(number))
    # when
    _, transfer = written(tier, random_bytes(3 * CHUNK_BYTES, 0).untyped_storage())
    # then
    assert isinstance(transfer.error, TierFailed)
    assert transfer.error.tier == "disk"
    text = str(transfer.error)
    assert text.startswith(f"disk tier: writing in {tier.file.directory} failed: {os.strerror(number)}")
    assert "Check the disk, or name another directory with spill_dir= (--spill-dir, TMPDIR)" in text


def test_a_read_that_fails_says_which_tier_and_what_to_do(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    slot, _ = written(tier, random_bytes(MIB, 0).untyped_storage())
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    # when
    _, transfer = read(tier, slot)
    # then
    assert isinstance(transfer.error, TierFailed)
    assert "disk tier: reading in" in str(transfer.error)
    assert "Input/output error" in str(transfer.error)
    assert "spill_dir=" in str(transfer.error)


def test_short_writes_and_reads_go_on_where_they_stopped(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: no more than two pages a call
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: 2 * PAGE_BYTES], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][: 2 * PAGE_BYTES]], at))
    content = random_bytes(300_001, 0)
    # when
    slot, out = written(tier, content.untyped_storage())
    storage, back = read(tier, slot)
    # then
    assert (out.error, back.error) == (None, None)
    assert torch.equal(as_bytes(storage), content)


@pytest.mark.parametrize(("call", "what"), [("pwrite", "write"), ("preadv", "read")])
def test_a_disk_that_takes_or_gives_nothing_more_is_an_error(
    call: str, what: str, tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    storage = random_bytes(MIB, 0).untyped_storage()
    slot, _ = written(tier, storage)
    monkeypatch.setattr(os, call, answering(0))
    # when
    transfer = tier.write(storage, slot) if what == "write" else tier.read(slot)[1]
    transfer.wait()
    # then: 1 MiB is 1048576 bytes
    assert isinstance(transfer.error, TierFailed)
    assert f"a {what} in {tier.file.directory} came up short: 0 of 1048576 bytes" in str(transfer.error)


@pytest.mark.parametrize("cut", ["ftruncate", "close", "replace"])
def test_bytes_of_a_file_that_is_not_ours_any_more_are_never_handed_out(
    cut: str, tier: DiskTier, tmp_path: Path
) -> None:
    # given
    storage = random_bytes(MIB, 0).untyped_storage()
    slot, _ = written(tier, storage)
    with open(tmp_path / "other", "wb+") as other:
        other.truncate(1 << 30)
        # when
        if cut == "ftruncate":
            os.ftruncate(tier.file.descriptor, PAGE_BYTES)
        elif cut == "close":
            os.close(tier.file.descriptor)
        else:
            os.dup2(other.fileno(), tier.file.descriptor)
    # then
    for transfer in (tier.read(slot)[1], tier.write(storage, slot)):
        transfer.wait()
        assert isinstance(transfer.error, TierFailed)


def test_an_error_nobody_thought_of_ends_the_transfer_too(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def call(*_: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(os, "pwrite", call)
    # when
    _, transfer = written(tier, random_bytes(3 * CHUNK_BYTES, 0).untyped_storage())
    # then
    assert isinstance(transfer.error, ZeroDivisionError)


def test_no_memory_to_come_back_to_is_said_of_the_device_tier(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    slot, _ = written(tier, random_bytes(MIB, 0).untyped_storage())

    def refused(*_: Any, **__: Any) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refused)
    # when / then
    with pytest.raises(TierFull, match=r"device tier: the system refuses 1\.0 MiB of RAM.*smaller budget") as raised:
        tier.read(slot)
    assert raised.value.tier == "device"


def test_a_kernel_without_huge_pages_is_no_obstacle(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    class NoHugePages(mmap.mmap):
        def madvise(self, *_: Any) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    content = random_bytes(2 * MIB, 0)
    slot, _ = written(tier, content.untyped_storage())
    monkeypatch.setattr(mmap, "mmap", NoHugePages)
    # when
    storage, transfer = read(tier, slot)
    # then
    assert transfer.error is None
    assert torch.equal(as_bytes(storage), content)


def test_threads_that_cannot_be_started_are_said_before_anything_is_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    before = own_threads()
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    # when / then
    with pytest.raises(TierFailed, match=r"disk tier: .*threads.*can't start new thread.*ulimit"):
        DiskTier(str(tmp_path))
    assert until(lambda: own_threads() == before)


def test_threads_and_descriptor_end_with_the_tier(tmp_path: Path) -> None:
    # given
    threads, descriptors = own_threads(), open_descriptors()
    tier = DiskTier(str(tmp_path))
    slot, _ = written(tier, random_bytes(3 * CHUNK_BYTES, 0).untyped_storage())
    read(tier, slot)
    assert own_threads() > threads
    # when
    del tier
    gc.collect()
    # then
    assert until(lambda: own_threads() == threads)
    assert open_descriptors() == descriptors


def test_close_ends_threads_and_descriptor_at_once(tmp_path: Path) -> None:
    # given
    threads, descriptors = own_threads(), open_descriptors()
    tier = DiskTier(str(tmp_path))
    written(tier, random_bytes(3 * CHUNK_BYTES, 0).untyped_storage())
    # when
    tier.close()
    # then
    assert own_threads() == threads
    assert open_descriptors() == descriptors
