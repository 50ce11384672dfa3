"""Storages that go through the host to the disk: streams are worked off by hand, the disk and its threads are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

from elbowroom.engine.executor import Executor, Place
from elbowroom.engine.saved_tensors import Handle
from elbowroom.engine.tiers.arenas import Arenas
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.ranges import PAGE_BYTES
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.staged import StagedTier
from elbowroom.engine.tiers.staging import Staging
from elbowroom.errors import TierFailed, TierFull
from tests.torch.streams_by_hand import BLOCK_BYTES, COMPUTE, HandStreams
from tests.torch.test_streams_races import overwrites, reads, saved

pytestmark = pytest.mark.filterwarnings("ignore:elbowroom. the file system")
PATIENCE_S = 10.0


def new(folder: Path, host_bytes: int = 64 * PAGE_BYTES) -> tuple[HandStreams, Executor, StagedTier]:
    """A device, and so much host memory below it, a quarter of which is for what passes."""
    streams = HandStreams()

    def arenas(size_bytes: int) -> Arenas:
        return Arenas(size_bytes, size_bytes, lambda _address, _size: True, lambda _address: None)

    host = StreamedHostTier(streams, arenas(host_bytes))
    tier = StagedTier(host, Staging(arenas(0), streams), lambda: SpillFile(str(folder), 1 << 20))
    return streams, Executor(tier), tier


def on_disk(executor: Executor, streams: HandStreams, n: int) -> Handle:
    """A storage that is away, filled with n, and whose copy out was asked for with the disk as its place."""
    return saved(executor, streams, n, to="disk")


def until(condition: Callable[[], bool]) -> None:
    """Wait for the threads of the disk."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the threads do not get there"
        time.sleep(0.001)


def staged_bytes(tier: StagedTier) -> int:
    return tier._staging.arenas.held_bytes


def test_bytes_that_were_on_the_disk_come_back(tmp_path: Path) -> None:
    # given a storage that was written to the disk, whose memory and whose room on the host others have by now
    streams, executor, tier = new(tmp_path)
    handle = on_disk(executor, streams, 7)
    executor.writes_done(1)
    assert handle.entry.place is Place.AWAY
    overwrites(streams)
    streams.finish()
    until(lambda: staged_bytes(tier) == 0)
    # when
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    streams.finish()
    # then
    assert streams.wrong == []
    assert executor.counters.swapped_back_bytes == BLOCK_BYTES


def test_what_is_not_written_yet_is_copied_back_from_the_host(tmp_path: Path) -> None:
    # given a device that has made no copy yet, so that the disk has nothing
    streams, executor, _ = new(tmp_path)
    handle = on_disk(executor, streams, 7)
    executor.writes_done(1)
    # when it is wanted back
    executor.bring_back(handle.entry)
    assert handle.entry.back is not None
    reads(executor, streams, handle)
    streams.finish()
    # then it never was read from the disk
    assert streams.wrong == []
    assert handle.entry.arrived is not None
    assert [hop.kind for hop in handle.entry.arrived.hops()] == []


def test_the_host_waits_for_nothing_while_there_is_room(tmp_path: Path) -> None:
    # given streams that do nothing
    streams, executor, _ = new(tmp_path)
    handle = on_disk(executor, streams, 7)
    # when compute is to wait for the copy
    executor.writes_done(1)
    # then the host got through
    assert handle.entry.place is Place.AWAY
    streams.finish()
    executor.read(handle.entry)


def test_many_storages_pass_through_little_room_in_any_order(tmp_path: Path) -> None:
    # given room for four storages on their way and a device that works
    streams, executor, tier = new(tmp_path, host_bytes=16 * PAGE_BYTES)
    ended = threading.Event()

    def device() -> None:
        while not ended.is_set():
            for stream in streams.streams():
                streams.advance(stream)

    working = threading.Thread(target=device)
    working.start()
    try:
        # when forty go to the disk and come back, the last first
        handles = [on_disk(executor, streams, n) for n in range(40)]
        executor.writes_done(40)
        for handle in reversed(handles):
            executor.bring_back(handle.entry)
            reads(executor, streams, handle)
            executor.residence.look()
    finally:
        ended.set()
        working.join()
    streams.finish()
    # then
    assert streams.wrong == []
    assert tier._staging.arenas.size_bytes <= 4 * PAGE_BYTES
    assert tier.size_bytes <= 16 * PAGE_BYTES


def test_what_the_host_cannot_hold_goes_on_to_the_disk(tmp_path: Path) -> None:
    # given 12 pages of the host beside 4 for what passes
    streams, executor, tier = new(tmp_path, host_bytes=16 * PAGE_BYTES)
    # when fourteen storages are swapped, of which no plan says where they go
    handles = [saved(executor, streams, n) for n in range(14)]
    executor.settle()
    streams.finish()
    # then a page each has found room for twelve
    assert tier.host.held_bytes == 12 * BLOCK_BYTES
    assert tier.held_bytes == 14 * BLOCK_BYTES
    for handle in handles:
        reads(executor, streams, handle)
    streams.finish()
    assert streams.wrong == []


def test_a_full_disk_says_what_both_tiers_had(tmp_path: Path) -> None:
    streams, executor, tier = new(tmp_path, host_bytes=16 * PAGE_BYTES)
    tier._open_file = lambda: SpillFile(str(tmp_path), PAGE_BYTES)
    with pytest.raises(TierFull) as caught:
        [saved(executor, streams, n) for n in range(14)]
    assert "host tier: 4.0 KiB more are needed" in str(caught.value)
    assert "disk tier: no room" in str(caught.value)
    streams.finish()
    executor.close()


def test_a_write_that_fails_is_told_at_the_next_swap_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that fails
    streams, executor, tier = new(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(SpillFile, "write", fails)
    handles = [on_disk(executor, streams, 7)]
    executor.writes_done(1)
    streams.finish()
    until(lambda: staged_bytes(tier) == 0)
    # when, then
    with pytest.raises(TierFailed, match=r"writing in .* failed: Input/output error"):
        on_disk(executor, streams, 8)
    with pytest.raises(TierFailed):
        executor.bring_back(handles[0].entry)
    handles.clear()
    executor.close()
    assert tier.size_bytes == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("elbowroom")]


def test_a_read_that_fails_is_told_to_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, executor, tier = new(tmp_path)
    handle = on_disk(executor, streams, 7)
    executor.writes_done(1)
    streams.finish()
    until(lambda: staged_bytes(tier) == 0)

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    # when
    monkeypatch.setattr(SpillFile, "read", fails)
    with pytest.raises(TierFailed, match=r"reading in .* failed: Input/output error"):
        executor.read(handle.entry)
    # then it is where it was, and comes back once the disk is well again
    assert handle.entry.place is Place.AWAY
    monkeypatch.undo()
    reads(executor, streams, handle)
    streams.finish()
    assert streams.wrong == []


def test_a_copy_that_the_device_refuses_is_told_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, executor, tier = new(tmp_path)

    def refused(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(HandStreams, "copy", refused)
    handle = on_disk(executor, streams, 7)
    # when
    with pytest.raises(RuntimeError, match="CUDA error"):
        executor.writes_done(1)
    # then the bytes are where they were
    assert handle.entry.place is Place.ON_DEVICE
    del handle
    executor.close()
    assert (tier.held_bytes, tier.size_bytes) == (0, 0)


def test_a_storage_that_is_dropped_on_its_way_frees_its_room(tmp_path: Path) -> None:
    # given one on its way out and one on its way back
    streams, executor, tier = new(tmp_path)
    leaving, returning = on_disk(executor, streams, 1), on_disk(executor, streams, 2)
    executor.writes_done(2)
    streams.finish()
    until(lambda: staged_bytes(tier) == 0)
    executor.bring_back(returning.entry)
    later = on_disk(executor, streams, 3)
    # when nobody wants them any more
    del leaving, returning, later
    executor.settle()
    executor.close()
    # then
    assert (tier.held_bytes, tier.size_bytes, staged_bytes(tier)) == (0, 0, 0)
    assert streams.wrong == []


def test_the_memory_of_a_plan_is_of_its_size(tmp_path: Path) -> None:
    # given a plan that holds 40 pages on the host and 20 on the disk
    streams, executor, tier = new(tmp_path)
    executor.expect({"host": 40 * PAGE_BYTES, "disk": 20 * PAGE_BYTES})
    # then what passes has all that is left of 64 pages and no more than it needs
    assert tier.host.arenas.budget_bytes == 44 * PAGE_BYTES
    assert tier._staging.arenas.budget_bytes == 20 * PAGE_BYTES
    handle = on_disk(executor, streams, 1)
    executor.writes_done(1)
    reads(executor, streams, handle)
    streams.finish()
    assert streams.wrong == []
    assert torch.tensor(tier.size_bytes) <= 64 * PAGE_BYTES
    assert streams.current() == COMPUTE


@pytest.mark.parametrize("to", ["host", "disk"])
def test_bytes_that_are_lent_are_in_memory_of_their_own_and_come_back_from_there(
    tmp_path: Path, to: Literal["host", "disk"]
) -> None:
    # given a storage that is away
    streams, executor, tier = new(tmp_path)
    handle = saved(executor, streams, 7, to=to)
    executor.settle()
    # when its bytes are lent; those on the disk are read only if that is asked for
    assert (executor.lend(handle.entry) is None) == (to == "disk")
    memory = executor.lend(handle.entry, from_disk=True)
    # then they are there, and the tier has them no longer
    assert memory is not None
    assert executor.lend(handle.entry) is memory
    assert bytes(memory.tolist()) == bytes([7] * BLOCK_BYTES)
    assert tier.held_bytes == 0
    # and they come back from there
    overwrites(streams)
    reads(executor, streams, handle)
    streams.finish()
    assert streams.wrong == []
