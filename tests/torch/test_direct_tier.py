"""Storages that go to the disk past the host: streams are worked off by hand, the file and the threads are real.

GPUDirect Storage itself is stood in for by a plain file (plain_gds.py); `python -m benchmarks.gpu` tries the real one.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.engine.executor import Executor, Place
from elbowroom.engine.saved_tensors import Handle
from elbowroom.engine.tiers import gds as direct
from elbowroom.engine.tiers import spillfile
from elbowroom.engine.tiers.arenas import Arenas
from elbowroom.engine.tiers.gds import DirectFile, DirectTier, open_direct
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.ranges import PAGE_BYTES
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.errors import TierFailed, TierFull, UsageError
from tests.torch.broken_disk import open_descriptors, own_threads
from tests.torch.plain_gds import PlainGdsFile
from tests.torch.streams_by_hand import BLOCK_BYTES, COMPUTE, OTHER, HandStreams
from tests.torch.test_staged_tier import on_disk, until
from tests.torch.test_streams_races import overwrites, reads, saved

pytestmark = pytest.mark.filterwarnings("ignore:elbowroom. the file system")


class Below:
    """A device by hand, host memory of so many pages below it, and a file beside that."""

    def __init__(self, folder: Path, host_pages: int = 64, disk_bytes: int = 1 << 20) -> None:
        self.streams = HandStreams()
        size_bytes = host_pages * PAGE_BYTES
        arenas = Arenas(size_bytes, size_bytes, lambda _address, _size: True, lambda _address: None)
        file = SpillFile(str(folder), disk_bytes)
        self.gds = PlainGdsFile(f"/proc/self/fd/{file.descriptor}", os.O_RDWR)
        self.tier = DirectTier(StreamedHostTier(self.streams, arenas), DirectFile(file, self.gds))
        self.executor = Executor(self.tier)

    def away(self, n: int) -> Handle:
        """A storage on the disk, whose memory others have by now."""
        handle = on_disk(self.executor, self.streams, n)
        self.streams.finish()
        self.executor.settle()
        assert handle.entry.place is Place.AWAY
        overwrites(self.streams)
        return handle

    def reads(self, handle: Handle) -> None:
        """Read it back and check it, with a device that works meanwhile."""
        self.executor.bring_back(handle.entry)
        self.streams.finish()
        reads(self.executor, self.streams, handle)
        self.streams.finish()
        assert self.streams.wrong == []


def test_bytes_come_back_and_never_were_on_the_host(tmp_path: Path) -> None:
    # given a storage on the disk
    below = Below(tmp_path)
    handle = below.away(7)
    # then it took no host memory
    assert (below.tier.size_bytes, below.tier.held_bytes) == (0, BLOCK_BYTES)
    # when
    below.reads(handle)
    # then
    assert [what for what, _, _ in below.gds.moved] == ["cuFileWrite", "cuFileRead"]
    assert below.executor.counters.swapped_back_bytes == BLOCK_BYTES


def test_a_write_begins_when_the_device_has_made_the_bytes(tmp_path: Path) -> None:
    # given a device that has done nothing yet
    below = Below(tmp_path)
    handle = on_disk(below.executor, below.streams, 7)
    # then nothing is written, and the storage stays where it is
    assert below.gds.moved == []
    assert handle.entry.place is Place.LEAVING
    # when it has
    below.streams.finish()
    below.executor.settle()
    # then
    assert handle.entry.place is Place.AWAY
    below.reads(handle)


def test_a_read_begins_when_the_device_is_through_with_what_lay_there(tmp_path: Path) -> None:
    # given a storage that is to come back to memory that a kernel before it still writes
    below = Below(tmp_path)
    handle = below.away(7)
    before = below.streams.new_storage(BLOCK_BYTES, COMPUTE)
    below.streams.writes(before, 9, COMPUTE)
    del before
    below.executor.bring_back(handle.entry)
    # then nothing is read until that is done
    assert [what for what, _, _ in below.gds.moved] == ["cuFileWrite"]
    below.streams.finish()
    below.reads(handle)


def test_a_write_that_has_not_begun_is_given_up_where_the_bytes_are_wanted_back(tmp_path: Path) -> None:
    # given
    below = Below(tmp_path)
    handle = on_disk(below.executor, below.streams, 7)
    # when it is wanted back before the device came that far
    below.executor.want(handle.entry)
    reads(below.executor, below.streams, handle)
    below.streams.finish()
    below.executor.settle()
    # then it never left
    assert below.streams.wrong == []
    until(lambda: below.tier._lanes[0]._work_queue.empty())
    assert below.gds.moved == []


def test_memory_is_not_given_away_while_a_piece_of_it_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    # given a write that is stopped in the middle
    below = Below(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    save = below.gds.save_storage

    def stopped(storage: torch.UntypedStorage, offset: int = 0) -> None:
        begun.set()
        assert go_on.wait(10)
        save(storage, offset)

    monkeypatch.setattr(below.gds, "save_storage", stopped)
    handle = on_disk(below.executor, below.streams, 7)
    below.streams.finish()
    assert begun.wait(10)
    # when it is given up
    transfer: Any = handle.entry.out
    giving_up = threading.Thread(target=transfer.abandon)
    giving_up.start()
    giving_up.join(0.05)
    # then whoever gives it up waits for the piece
    assert giving_up.is_alive()
    go_on.set()
    giving_up.join(10)
    assert not giving_up.is_alive()
    assert transfer._storage is None


def test_a_read_that_is_not_wanted_any_more_gives_its_room_back_once_it_is_through(tmp_path: Path) -> None:
    # given a swap back that waits for the device
    below = Below(tmp_path)
    handle = below.away(7)
    below.streams.writes(below.streams.new_storage(BLOCK_BYTES, COMPUTE), 9, COMPUTE)
    below.executor.bring_back(handle.entry)
    assert below.tier.held_bytes == BLOCK_BYTES
    # when the saved tensor dies
    del handle
    # then the room is free, and is handed out once the thread is done with it
    assert below.tier.held_bytes == 0
    below.streams.finish()
    until(lambda: below.tier._file is not None and below.tier._file.held_bytes == 0)
    assert [what for what, _, _ in below.gds.moved] == ["cuFileWrite"]


def test_a_reader_on_another_stream_keeps_the_memory_from_the_storages_own(tmp_path: Path) -> None:
    # given a storage that came back
    below = Below(tmp_path)
    handle = below.away(7)
    below.executor.bring_back(handle.entry)
    below.streams.finish()
    # when a stream that is not its own reads it, and it is freed before that has run
    below.streams.stream = OTHER
    reads(below.executor, below.streams, handle)
    below.streams.stream = COMPUTE
    del handle
    overwrites(below.streams)
    below.streams.run(COMPUTE)
    below.streams.finish()
    # then the reader found its bytes
    assert below.streams.wrong == []


def test_storages_go_in_pieces_and_come_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given pieces of 16 bytes
    monkeypatch.setattr(direct, "DIRECT_PIECE_BYTES", 16)
    below = Below(tmp_path)
    # when 64 bytes go and come back
    handle = below.away(7)
    below.reads(handle)
    # then
    assert [(size, offset) for _, size, offset in below.gds.moved] == [(16, 0), (16, 16), (16, 32), (16, 48)] * 2


def test_what_the_host_cannot_hold_goes_to_the_disk_and_the_budget_of_the_disk_is_kept(tmp_path: Path) -> None:
    # given a page of the host, and two of the disk
    below = Below(tmp_path, host_pages=1, disk_bytes=2 * PAGE_BYTES)
    # when four storages are swapped, of which no plan says where they go
    handles = [saved(below.executor, below.streams, n) for n in range(3)]
    with pytest.raises(TierFull, match=r"host tier: .* and disk tier: no room for .*its budget is 8.0 KiB"):
        saved(below.executor, below.streams, 3)
    below.streams.finish()
    below.executor.settle()
    # then one is on the host and two are on the disk
    assert below.tier.host.held_bytes == BLOCK_BYTES
    assert below.tier.held_bytes == 3 * BLOCK_BYTES
    for handle in handles:
        below.reads(handle)


def test_a_write_that_fails_keeps_the_bytes_where_they_are(tmp_path: Path) -> None:
    below = Below(tmp_path)
    below.gds.fails.add("cuFileWrite")
    handle = on_disk(below.executor, below.streams, 7)
    below.streams.finish()
    with pytest.raises(TierFailed, match=r"disk tier: writing in .* failed: cuFileWrite failed: cufile io error"):
        below.executor.settle()
    # then nothing is lost
    reads(below.executor, below.streams, handle)
    below.streams.finish()
    assert below.streams.wrong == []


def test_a_write_that_comes_short_is_a_write_that_fails(tmp_path: Path) -> None:
    below = Below(tmp_path)
    below.gds.comes_short = True
    handle = on_disk(below.executor, below.streams, 7)
    below.streams.finish()
    with pytest.raises(TierFailed, match=r"disk tier: writing in .*handled only 32 of 64 bytes"):
        below.executor.settle()
    assert handle.entry.place is Place.ON_DEVICE


def test_a_read_that_fails_is_told_to_the_reader_and_can_be_tried_again(tmp_path: Path) -> None:
    # given
    below = Below(tmp_path)
    handle = below.away(7)
    below.gds.fails.add("cuFileRead")
    below.executor.bring_back(handle.entry)
    below.streams.finish()
    # when
    with pytest.raises(TierFailed, match=r"disk tier: reading in .* failed: cuFileRead failed: cufile io error"):
        below.executor.read(handle.entry)
    # then the bytes are where they were
    assert handle.entry.place is Place.AWAY
    below.gds.fails.clear()
    below.reads(handle)


def test_a_file_that_somebody_cut_is_told_before_anything_is_read(tmp_path: Path) -> None:
    # given
    below = Below(tmp_path)
    handle = below.away(7)
    assert below.tier._file is not None
    os.ftruncate(below.tier._file.descriptor, 0)
    # when
    below.executor.bring_back(handle.entry)
    below.streams.finish()
    # then
    with pytest.raises(TierFailed, match=r"the spill file in .* was replaced or cut to 0 B"):
        below.executor.read(handle.entry)


def test_closing_ends_threads_and_files(tmp_path: Path) -> None:
    # given nothing that other tests have left
    gc.collect()
    threads, descriptors, opened = own_threads(), open_descriptors(), PlainGdsFile.opened
    below = Below(tmp_path)
    handle = below.away(7)
    below.reads(handle)
    # when
    del handle
    below.executor.close()
    del below
    # then no more is there than before
    assert own_threads() <= threads
    assert open_descriptors() <= descriptors
    assert PlainGdsFile.opened == opened


@pytest.fixture
def direct_path(tmp_path: Path) -> Path:
    """A directory whose file system does direct I/O, without which GPUDirect Storage is not tried."""
    file = SpillFile(str(tmp_path), 1 << 20)
    file.close()
    if not file.direct:
        pytest.skip(f"the file system of {tmp_path} refuses O_DIRECT: name another with --basetemp")
    return tmp_path


@pytest.mark.parametrize("fault", ["open", "write", "read", "other bytes"])
def test_a_machine_without_it_says_why_and_leaves_nothing(
    direct_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    # given a driver that refuses the file, or a move, or moves wrong bytes
    class Refusing:
        def __init__(self, filename: str, flags: int) -> None:
            if fault == "open":
                raise RuntimeError("cuFileHandleRegister failed: nvidia-fs driver is not loaded")
            self.file = PlainGdsFile(filename, flags)

        def save_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
            if fault == "write":
                raise RuntimeError("cuFileWrite failed: cufile io error")
            self.file.save_storage(storage, offset)

        def load_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
            if fault == "read":
                raise RuntimeError("cuFileRead failed: cufile io error")

    monkeypatch.setattr(torch.cuda.gds, "GdsFile", Refusing)
    gc.collect()  # files of tests before this one may lie in cycles
    before = open_descriptors()
    words = {
        "open": "cuFileHandleRegister failed: nvidia-fs driver is not loaded",
        "write": "cuFileWrite failed",
        "read": "cuFileRead failed",
        "other bytes": "what was read back is not what was written",
    }
    # when
    with pytest.warns(RuntimeWarning, match=rf"GPUDirect Storage is not used in .*{words[fault]}"):
        found = open_direct(str(direct_path), 1 << 20, torch.device("cpu"))
    # then
    assert found is None
    assert open_descriptors() == before


def test_a_machine_that_moves_the_right_bytes_is_taken(direct_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.gds, "GdsFile", PlainGdsFile)
    # when
    found = open_direct(str(direct_path), 1 << 20, torch.device("cpu"))
    # then all of the file is free
    assert found is not None
    assert found.file.held_bytes == 0
    found.close()


def test_a_file_system_without_direct_io_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(torch.cuda.gds, "GdsFile", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr(
        spillfile, "_open_private", lambda directory: (os.open(directory, os.O_TMPFILE | os.O_RDWR), False)
    )
    # when
    with pytest.warns(RuntimeWarning, match="is not used in .* \\(the file system refuses O_DIRECT\\)"):
        assert open_direct(str(tmp_path), 1 << 20, torch.device("cpu")) is None


@pytest.mark.parametrize(("knob", "given", "said"), [("gds", True, "True"), ("managed", "1GiB", "1073741824")])
def test_ram_as_the_device_has_neither_a_way_past_the_host_nor_managed_memory(knob: Any, given: Any, said: str) -> None:
    refused = pytest.raises(UsageError, match=f"given {knob}={said} and RAM as the device; allowed is a CUDA device")
    with refused, er.within("1GiB", device="cpu", **{knob: given}):
        pass


SMALL_RUN = """
import sys, torch, elbowroom
layer = torch.nn.Linear(8, 8)
with elbowroom.within("1GiB", device="cpu"):
    for _ in range(3):
        layer(torch.ones(2, 8)).sum().backward()
        layer.zero_grad()
assert "elbowroom.engine.tiers.disk" in sys.modules
assert "elbowroom.engine.tiers.gds" not in sys.modules
"""


def test_gpudirect_storage_is_not_loaded_by_a_run_that_does_not_ask_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
