"""The four states, walked through by hand."""

from __future__ import annotations

import threading

import torch

from elbowroom.engine.executor import Executor, Place
from elbowroom.engine.saved_tensors import Handle
from elbowroom.torch_compat.core import storage_key
from tests.torch.moved_by_hand import HandTier, content, nothing_left, same, save, swapped, values


def away(executor: Executor, tier: HandTier, n: int = 0) -> Handle:
    """A saved tensor whose bytes have left the device."""
    handle = swapped(executor, n)
    tier.writes[-1].end()
    executor.writes_done(0)
    return handle


def returning(executor: Executor, tier: HandTier, n: int = 0) -> Handle:
    """A saved tensor whose bytes are on their way back."""
    handle = away(executor, tier, n)
    executor.bring_back(handle.entry)
    return handle


def test_an_entry_stays_on_the_device_until_its_write_has_ended() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    # when
    executor.writes_done(0)
    # then
    assert handle.entry.place is Place.LEAVING
    assert handle.entry.alive() is not None


def test_a_tick_after_the_write_has_ended_lets_the_device_bytes_go() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    tier.writes[0].end()
    assert handle.entry.place is Place.LEAVING, "a transfer that ends moves no entry"
    # when
    executor.writes_done(0)
    # then
    assert handle.entry.place is Place.AWAY
    assert handle.entry.alive() is None
    assert executor.counters.swapped_out_bytes == 64  # 16 floats of 4 bytes


def test_bytes_that_somebody_else_holds_are_away_and_on_the_device() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    held = content(0)
    handle = save(executor, held)
    # when
    tier.writes[0].end()
    executor.writes_done(0)
    # then
    assert handle.entry.place is Place.AWAY
    assert executor.read(handle.entry) is held.untyped_storage()
    assert tier.reads == []


def test_a_write_is_waited_for_where_the_plan_needs_its_room() -> None:
    # given
    tier = HandTier(ends_when_waited_for=True)
    executor = Executor(tier)
    first, second = swapped(executor, 0), swapped(executor, 1)
    # when
    executor.writes_done(1)
    # then
    assert (first.entry.place, second.entry.place) == (Place.AWAY, Place.LEAVING)
    assert executor.counters.stall_ns > 0


def test_writes_are_let_go_of_in_the_order_they_were_asked_for() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    first, second = swapped(executor, 0), swapped(executor, 1)
    # when
    tier.writes[1].end()
    executor.writes_done(0)
    # then
    assert (first.entry.place, second.entry.place) == (Place.LEAVING, Place.LEAVING)
    # when
    tier.writes[0].end()
    executor.writes_done(0)
    # then
    assert (first.entry.place, second.entry.place) == (Place.AWAY, Place.AWAY)


def test_a_swap_back_brings_the_same_bytes_into_another_storage() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = away(executor, tier, n=3)
    # when
    executor.bring_back(handle.entry)
    assert handle.entry.place is Place.RETURNING
    tier.reads[0].end()
    storage = executor.read(handle.entry)
    # then
    assert same(storage, handle.entry)
    assert executor.counters.swapped_back_bytes == 64  # 16 floats of 4 bytes
    assert executor.counters.stall_ns == 0


def test_a_storage_that_was_not_asked_back_is_fetched_when_it_is_read() -> None:
    # given
    tier = HandTier(ends_when_waited_for=True)
    executor = Executor(tier)
    handle = swapped(executor)
    executor.settle()
    # when
    storage = executor.read(handle.entry)
    # then
    assert same(storage, handle.entry)


def test_a_second_call_for_a_storage_on_its_way_back_changes_nothing() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = returning(executor, tier)
    # when
    executor.bring_back(handle.entry)
    executor.want(handle.entry)
    # then
    assert len(tier.reads) == 1
    assert handle.entry.place is Place.RETURNING


def test_wanted_back_while_leaving_gives_the_write_up_and_keeps_the_storage() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    storage = handle.entry.alive()
    # when
    executor.want(handle.entry)
    # then
    assert tier.writes[0].abandoned
    assert handle.entry.place is Place.ON_DEVICE
    # when
    tier.writes[0].end()
    executor.writes_done(0)
    # then
    assert executor.read(handle.entry) is storage
    assert tier.reads == []
    assert executor.counters.swapped_out_bytes == 0


def test_a_storage_whose_write_was_given_up_is_never_fetched_from_its_empty_slot() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    executor.want(handle.entry)
    tier.writes[0].end()
    # when
    for _ in range(3):
        executor.writes_done(0)
        storage = executor.read(handle.entry)
    # then
    assert same(storage, handle.entry)
    assert tier.reads == []


def test_read_while_leaving_gives_the_storage_that_still_is_there() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    # when
    storage = executor.read(handle.entry)
    # then
    assert same(storage, handle.entry)
    assert tier.writes[0].abandoned
    assert executor.counters.stall_ns == 0


def test_wanted_back_after_its_write_has_ended_stays_without_a_transfer() -> None:
    # given: the write has ended, no tick has noticed
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    tier.writes[0].end()
    # when
    executor.want(handle.entry)
    executor.bring_back(handle.entry)
    # then
    assert handle.entry.place is Place.ON_DEVICE
    assert not tier.writes[0].abandoned
    assert same(executor.read(handle.entry), handle.entry)
    assert tier.reads == []


def test_a_reader_waits_in_its_thread_until_the_bytes_are_back() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = returning(executor, tier)
    got: list[torch.UntypedStorage] = []
    reader = threading.Thread(target=lambda: got.append(executor.read(handle.entry)))
    # when
    reader.start()
    assert tier.reads[0].started_waiting.wait(10)
    # then
    assert reader.is_alive()
    assert got == []
    # when
    tier.reads[0].end()
    reader.join(10)
    # then
    assert same(got[0], handle.entry)
    assert executor.counters.stall_ns > 0


def test_two_readers_in_two_threads_get_the_same_storage() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = returning(executor, tier)
    got: list[torch.UntypedStorage] = []
    readers = [threading.Thread(target=lambda: got.append(executor.read(handle.entry))) for _ in range(2)]
    # when
    for reader in readers:
        tier.reads[0].started_waiting.clear()
        reader.start()
        assert tier.reads[0].started_waiting.wait(10)
    tier.reads[0].end()
    for reader in readers:
        reader.join(10)
    # then
    assert len(got) == 2
    assert got[0] is got[1]
    assert same(got[0], handle.entry)


def test_what_was_read_stays_on_the_device_until_its_last_saved_tensor_dies() -> None:
    # given: a graph that is read twice, as with retain_graph
    tier = HandTier(ends_when_waited_for=True)
    executor = Executor(tier)
    handle = _settled(executor)
    # when
    first = values(executor.read(handle.entry)).clone()
    second = values(executor.read(handle.entry)).clone()
    # then
    assert torch.equal(first, second)
    assert len(tier.reads) == 1
    assert handle.entry.place is Place.ON_DEVICE
    # when
    del handle
    # then
    assert nothing_left(executor)


def test_a_new_step_counts_anew_and_the_writes_of_the_one_before_come_before_its_first() -> None:
    # given a write that is under way when a step begins
    tier = HandTier(ends_when_waited_for=True)
    executor = Executor(tier)
    handle = swapped(executor)
    # when
    executor.begin_step()
    # then nobody waits for it yet
    assert handle.entry.place is Place.LEAVING
    assert executor.counters.swapped_out_bytes == 0
    # when the first write of the new step must have ended
    later = swapped(executor, 1)
    executor.writes_done(1)
    # then the one before has, too
    assert handle.entry.place is Place.AWAY
    assert later.entry.place is Place.AWAY


def test_a_swap_back_leaves_a_newer_storage_at_the_same_address_in_the_table() -> None:
    # given: storage objects are recycled, so a new one soon has the address of one that is away
    tier = HandTier(ends_when_waited_for=True)
    executor = Executor(tier)
    gone = _settled(executor)
    candidates = [torch.empty(16) for _ in range(1000)]
    newer = next(c.untyped_storage() for c in candidates if storage_key(c.untyped_storage()) == gone.entry.key)
    entry = executor.add(1, newer, version=0)
    # when
    executor.bring_back(gone.entry)
    # then
    assert executor.find(newer) is entry


def test_changed_bytes_are_kept_and_their_copy_is_never_read() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    held = content(0)
    handle = save(executor, held)
    tier.writes[0].end()
    executor.writes_done(0)
    # when
    held.data.mul_(2)
    executor.keep(handle.entry)
    del held
    for _ in range(2):
        storage = executor.read(handle.entry)
    # then
    assert torch.equal(values(storage), 2 * content(0))
    assert tier.reads == []
    # when
    del handle, storage
    # then
    assert nothing_left(executor)


def _settled(executor: Executor, n: int = 0) -> Handle:
    handle = swapped(executor, n)
    executor.settle()
    return handle


def test_a_write_that_was_given_up_leaves_no_copy_to_leave_by_again() -> None:
    # given a state whose write is given up half way, and is off the queue by the time that it is used
    tier = HandTier()
    executor = Executor(tier)
    storage = torch.arange(16.0).untyped_storage()
    entry = executor.leave(0, storage)
    executor.want(entry)
    tier.writes[-1].end()
    executor.settle()
    assert entry.place is Place.ON_DEVICE
    # when it is used, and the tier is to keep what it has of it
    executor.arrive(entry, keeps=True)
    # then nothing is kept: the next time it is written
    assert entry.handles == 0
    assert tier.held_bytes == 0
