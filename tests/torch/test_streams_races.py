"""Copies of a device with streams, worked off by hand: no order of the device's own shows wrong bytes."""

from __future__ import annotations

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from elbowroom.engine.executor import Executor, Place
from elbowroom.engine.saved_tensors import Handle
from elbowroom.machine import TierName
from elbowroom.run.making_room import MakingRoom
from tests.torch.moved_by_hand import nothing_left
from tests.torch.streams_by_hand import BLOCK_BYTES, COMPUTE, OTHER, HandStreams, host_tier

PICK = st.integers(0, 1000)
STAND_IN: Any = SimpleNamespace(leave_now=lambda: False, free_bytes=0)
"""Of optimizer states, limit and learner, which have no part in this."""


def saved(
    executor: Executor, streams: HandStreams, n: int, home: Hashable = COMPUTE, to: TierName | None = None
) -> Handle:
    """A storage that a kernel fills with n, saved on its stream, held by nobody else, and leaving."""
    streams.stream = home
    storage = streams.new_storage(BLOCK_BYTES, home)
    streams.writes(storage, n, home)
    entry = executor.add(n, storage, 0)
    executor.swap_out(entry, to)
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (BLOCK_BYTES,), (1,))  # pyright: ignore[reportArgumentType]
    return Handle(executor, entry, tensor)


def reads(executor: Executor, streams: HandStreams, handle: Handle, reader: Hashable = COMPUTE) -> None:
    """Backward reads a storage on a stream, and nobody holds it then but the handle."""
    streams.stream = reader
    streams.checks(executor.read(handle.entry), handle.entry.n, reader)


def overwrites(streams: HandStreams, home: Hashable = COMPUTE) -> torch.UntypedStorage:
    """The next block of a stream is filled with something else."""
    storage = streams.new_storage(BLOCK_BYTES, home)
    streams.writes(storage, 250, home)
    return storage


def new() -> tuple[HandStreams, Executor]:
    streams = HandStreams()
    return streams, Executor(host_tier(streams))


def test_the_host_waits_for_nothing() -> None:
    # given streams that do nothing
    streams, executor = new()
    handle = saved(executor, streams, 1)
    # when the host goes through all of it
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    # then it got through, and the device does it all later
    assert handle.entry.place is Place.ON_DEVICE
    streams.finish()
    assert streams.wrong == []
    assert executor.counters.swapped_back_bytes == BLOCK_BYTES


def test_a_storage_leaves_where_the_schedule_says_and_not_when_its_copy_ends() -> None:
    # given a copy that the device has made
    streams, executor = new()
    handle = saved(executor, streams, 1)
    streams.finish()
    # when a tick comes that waits for nothing
    executor.writes_done(0)
    # then
    assert handle.entry.place is Place.LEAVING
    # when one comes that waits for it
    executor.writes_done(1)
    # then
    assert handle.entry.place is Place.AWAY
    assert handle.entry.alive() is None


def test_a_copy_out_comes_after_the_kernel_that_makes_the_bytes() -> None:
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    # when copies are as early as they can be
    streams.run("out")
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    streams.finish()
    # then
    assert streams.wrong == []


def test_memory_that_was_let_go_of_is_overwritten_after_the_copy_out() -> None:
    # given a storage whose memory goes to the next kernel
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    overwrites(streams)
    # when compute is as early as it can be
    streams.run(COMPUTE)
    streams.run("out")
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    streams.finish()
    # then
    assert streams.wrong == []


def test_a_copy_back_does_not_overwrite_what_an_earlier_kernel_still_reads() -> None:
    # given the block of a storage that is dropped while a kernel that reads it is still to come
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    streams.run(COMPUTE)
    streams.run("out")
    streams.run(COMPUTE)
    storage = overwrites(streams)
    streams.checks(storage, 250, COMPUTE)
    del storage
    # when the copy back, into this block, is as early as it can be
    executor.bring_back(handle.entry)
    streams.run("back")
    reads(executor, streams, handle)
    streams.finish()
    # then
    assert streams.wrong == []


def test_a_reader_comes_after_the_copy_back() -> None:
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    # when compute is as early as it can be
    streams.run(COMPUTE)
    streams.run("out")
    streams.run(COMPUTE)
    streams.finish()
    # then
    assert streams.wrong == []


def test_a_storage_that_came_back_and_is_never_read_is_freed_after_its_copy() -> None:
    # given a copy back under way when the graph dies
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    del handle
    # when its block goes to another kernel, which is as early as it can be
    storage = overwrites(streams)
    streams.checks(storage, 250, COMPUTE)
    for stream in (COMPUTE, "out", COMPUTE, "back"):
        streams.run(stream)
    streams.finish()
    # then
    assert streams.wrong == []
    assert nothing_left(executor)


def test_a_storage_that_is_wanted_back_while_it_leaves_stays_without_a_copy_back() -> None:
    # given
    streams, executor = new()
    handle = saved(executor, streams, 1)
    storage = handle.entry.alive()
    # when
    executor.want(handle.entry)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    # then
    assert executor.read(handle.entry) is storage
    assert executor.counters.swapped_back_bytes == 0
    # when its room goes to another storage before its copy is made
    del storage
    reads(executor, streams, handle)
    del handle
    executor.settle()
    other = saved(executor, streams, 2)
    executor.writes_done(2)
    executor.bring_back(other.entry)
    reads(executor, streams, other)
    streams.run(COMPUTE)
    streams.finish()
    # then the later copy to that room is the one that counts
    assert streams.wrong == []


def test_a_reader_on_another_stream_waits_and_keeps_the_memory_until_it_is_done() -> None:
    # given a storage saved on one stream and read on another
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    reads(executor, streams, handle, OTHER)
    del handle
    # when its memory would be the next for its own stream
    overwrites(streams)
    for stream in (OTHER, COMPUTE, "out", COMPUTE, "back", COMPUTE):
        streams.run(stream)
    streams.finish()
    # then
    assert streams.wrong == []


def test_room_on_the_host_goes_to_another_stream_after_the_copy_back_from_it() -> None:
    # given a storage of one stream on its way back
    streams, executor = new()
    handle = saved(executor, streams, 1)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    reads(executor, streams, handle)
    del handle
    # when another stream's storage leaves to the same room, and its copy is as early as it can be
    second = saved(executor, streams, 2, OTHER)
    for stream in (OTHER, COMPUTE, "out", OTHER, "out"):
        streams.run(stream)
    executor.writes_done(2)
    executor.bring_back(second.entry)
    reads(executor, streams, second, OTHER)
    streams.finish()
    # then
    assert streams.wrong == []


@pytest.mark.parametrize(
    ("waiting", "waited_for"),
    [("out", COMPUTE), (COMPUTE, "out"), ("back", COMPUTE), (COMPUTE, "back"), (OTHER, "back"), ("out", "back")],
)
def test_without_any_one_of_the_waits_some_order_shows_wrong_bytes(waiting: str, waited_for: str) -> None:
    wrong: list[str] = []
    for scene in SCENES:
        with pytest.MonkeyPatch.context() as patch:
            made: list[HandStreams] = []

            def crippled(made: list[HandStreams] = made) -> tuple[HandStreams, Executor]:
                streams, executor = NEW()
                streams.without = {(waiting, waited_for)}
                made.append(streams)
                return streams, executor

            patch.setitem(globals(), "new", crippled)
            try:
                scene()
            except AssertionError:
                wrong += [text for streams in made for text in streams.wrong]
    assert wrong


NEW = new
SCENES = (
    test_a_copy_out_comes_after_the_kernel_that_makes_the_bytes,
    test_memory_that_was_let_go_of_is_overwritten_after_the_copy_out,
    test_a_copy_back_does_not_overwrite_what_an_earlier_kernel_still_reads,
    test_a_reader_comes_after_the_copy_back,
    test_a_storage_that_came_back_and_is_never_read_is_freed_after_its_copy,
    test_a_reader_on_another_stream_waits_and_keeps_the_memory_until_it_is_done,
    test_room_on_the_host_goes_to_another_stream_after_the_copy_back_from_it,
)


class AnyOrder(RuleBasedStateMachine):
    """Two streams that compute: saves, ticks, reads and deaths of handles, and the device in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.streams, self.executor = NEW()
        self.handles: list[Handle] = []
        self.others: list[tuple[torch.UntypedStorage, Hashable]] = []
        self.count = 0

    @rule(home=st.sampled_from([COMPUTE, OTHER]))
    def saves(self, home: Hashable) -> None:
        self.count += 1
        self.handles.append(saved(self.executor, self.streams, self.count % 250, home))

    @rule(home=st.sampled_from([COMPUTE, OTHER]))
    def makes_something_else(self, home: Hashable) -> None:
        self.others.append((overwrites(self.streams, home), home))

    @precondition(lambda self: self.others)
    @rule(at=PICK)
    def looks_at_it_and_drops_it(self, at: int) -> None:
        storage, home = self.others.pop(at % len(self.others))
        self.streams.checks(storage, 250, home)

    @rule(count=st.integers(0, 4))
    def a_tick_waits_for_writes(self, count: int) -> None:
        self.executor.writes_done(count)

    @precondition(lambda self: self.handles)
    @rule(at=PICK)
    def a_tick_swaps_back(self, at: int) -> None:
        entry = self.handles[at % len(self.handles)].entry
        self.executor.want(entry)
        self.executor.bring_back(entry)

    @precondition(lambda self: self.handles)
    @rule(at=PICK)
    def is_read_on_its_own_stream(self, at: int) -> None:
        handle = self.handles[at % len(self.handles)]
        reads(self.executor, self.streams, handle, handle.entry.home)

    @precondition(lambda self: any(each.entry.arrived is not None for each in self.handles))
    @rule(at=PICK, reader=st.sampled_from([COMPUTE, OTHER]))
    def is_read_on_any_stream_after_it_came_back(self, at: int, reader: Hashable) -> None:
        back = [each for each in self.handles if each.entry.arrived is not None]
        reads(self.executor, self.streams, back[at % len(back)], reader)

    @precondition(lambda self: self.handles)
    @rule(at=PICK)
    def a_handle_dies(self, at: int) -> None:
        self.handles.pop(at % len(self.handles))

    @rule(at=PICK, count=st.integers(1, 6))
    def the_device_goes_on(self, at: int, count: int) -> None:
        streams = self.streams.streams()
        for turn in range(count if streams else 0):
            self.streams.advance(streams[(at + turn * 7) % len(streams)])

    @rule(stream=st.sampled_from([COMPUTE, OTHER, "out", "back"]))
    def a_stream_runs_ahead(self, stream: Hashable) -> None:
        self.streams.run(stream)

    @rule()
    def a_step_begins(self) -> None:
        self.executor.begin_step()

    def teardown(self) -> None:
        while self.handles:
            handle = self.handles.pop()
            reads(self.executor, self.streams, handle, handle.entry.home)
            del handle
        self.executor.settle()
        self.others.clear()
        self.streams.finish()
        assert self.streams.wrong == []
        assert nothing_left(self.executor)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40)


def test_what_is_kept_leaves_behind_the_work_of_the_stream_that_made_it() -> None:
    # given a storage that a stream is still filling, which a plan keeps
    streams, executor = new()
    streams.stream = OTHER
    storage = streams.new_storage(BLOCK_BYTES, OTHER)
    streams.writes(storage, 7, OTHER)
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (BLOCK_BYTES,), (1,))  # pyright: ignore[reportArgumentType]
    handle = Handle(executor, executor.add(7, storage, 0), tensor)
    room = MakingRoom(executor, STAND_IN, STAND_IN, STAND_IN)
    room.retries.turn(on=True)
    room.handled(handle)
    room.retries.turn(on=False)
    del storage, tensor
    # when room is made while another stream is the current one
    streams.stream = COMPUTE
    assert room.make(BLOCK_BYTES)
    for stream in (COMPUTE, "out", "back"):
        streams.run(stream)
    # then the copy has waited for it
    reads(executor, streams, handle)
    streams.finish()
    assert streams.wrong == []
