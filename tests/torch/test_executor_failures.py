"""Transfers that fail, in each state: an error at the next tick, never a wrong storage, nothing left behind."""

from __future__ import annotations

import pytest

from elbowroom.engine.executor import Executor, Place
from elbowroom.engine.saved_tensors import Handle
from elbowroom.errors import TierFailed, TierFull
from tests.torch.moved_by_hand import HandTier, content, nothing_left, same, save, swapped

BROKEN = TierFailed("disk tier: it broke", tier="disk")


def failed_write(tier: HandTier, executor: Executor) -> Handle:
    handle = swapped(executor)
    tier.writes[-1].fail(BROKEN)
    return handle


def failed_read(tier: HandTier, executor: Executor) -> Handle:
    handle = swapped(executor)
    tier.writes[-1].end()
    executor.writes_done(0)
    executor.bring_back(handle.entry)
    tier.reads[-1].fail(BROKEN)
    return handle


def test_a_failed_write_is_raised_at_the_next_tick() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_write(tier, executor)
    # when
    with pytest.raises(TierFailed, match="it broke"):
        executor.writes_done(0)
    # then
    executor.writes_done(0)
    assert same(executor.read(handle.entry), handle.entry)
    assert tier.reads == [], "its slot holds nothing"


def test_a_storage_whose_write_failed_is_let_go_of_with_its_last_handle() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_write(tier, executor)
    with pytest.raises(TierFailed):
        executor.writes_done(0)
    # when
    del handle
    executor.writes_done(0)
    # then
    assert nothing_left(executor)


def test_a_storage_whose_write_failed_is_let_go_of_when_its_handle_died_first() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_write(tier, executor)
    # when
    del handle
    with pytest.raises(TierFailed):
        executor.settle()
    executor.settle()
    # then
    assert nothing_left(executor)


def test_writes_that_fail_together_are_one_error_where_the_step_is_given_up() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    first, second = swapped(executor), swapped(executor, 1)
    tier.writes[0].fail(BROKEN)
    with pytest.raises(TierFailed, match="it broke"):
        executor.writes_done(0)
    # when: the graph goes with the step, and then the other one fails too
    del first, second
    tier.writes[1].fail(BROKEN)
    executor.begin_step()
    # then
    assert nothing_left(executor)


def test_of_writes_that_fail_together_every_storage_keeps_its_bytes() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handles = [swapped(executor), swapped(executor, 1)]
    for write in tier.writes:
        write.fail(BROKEN)
    # when
    with pytest.raises(TierFailed, match="it broke"):
        executor.writes_done(0)
    executor.writes_done(0)
    # then
    assert all(same(executor.read(handle.entry), handle.entry) for handle in handles)
    assert tier.reads == [], "their slots hold nothing"


def test_the_writes_after_a_failed_one_still_end() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    first, second = failed_write(tier, executor), swapped(executor, 1)
    tier.writes[1].end()
    # when
    with pytest.raises(TierFailed):
        executor.writes_done(2)
    executor.writes_done(2)
    # then
    assert second.entry.place is Place.AWAY
    del first, second
    assert nothing_left(executor)


def test_a_write_that_was_given_up_and_failed_leaves_the_storage_readable() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    executor.want(handle.entry)
    tier.writes[0].fail(BROKEN)
    # when
    with pytest.raises(TierFailed):
        executor.writes_done(0)
    # then
    assert same(executor.read(handle.entry), handle.entry)
    del handle
    assert nothing_left(executor)


def test_a_failed_write_ends_the_wait_for_it() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_write(tier, executor)
    # when / then
    with pytest.raises(TierFailed):
        executor.begin_step()
    del handle
    executor.begin_step()
    assert nothing_left(executor)


def test_a_failed_read_is_raised_to_the_reader_and_hands_out_nothing() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_read(tier, executor)
    # when
    with pytest.raises(TierFailed, match="it broke"):
        executor.read(handle.entry)
    # then
    assert handle.entry.place is Place.AWAY
    assert handle.entry.alive() is None


def test_a_failed_read_can_be_tried_again() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_read(tier, executor)
    with pytest.raises(TierFailed):
        executor.read(handle.entry)
    # when
    tier.ends_when_waited_for = True
    storage = executor.read(handle.entry)
    # then
    assert same(storage, handle.entry)
    del handle
    assert nothing_left(executor)


def test_a_failed_read_that_nobody_asks_for_is_forgotten_with_its_handle() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = failed_read(tier, executor)
    # when
    del handle
    executor.writes_done(0)
    # then
    assert nothing_left(executor)


def test_a_tier_without_room_leaves_nothing_of_the_storage_behind() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    tier.refusal = TierFull("disk tier: no room", tier="disk")
    tensor = content(0)
    # when
    with pytest.raises(TierFull, match="no room"):
        save(executor, tensor)
    # then
    assert executor.find(tensor.untyped_storage()) is None
    assert nothing_left(executor)
    # when: there is room again
    tier.refusal = None
    handle = save(executor, tensor)
    del tensor
    tier.writes[0].end()
    executor.writes_done(0)
    # then
    assert handle.entry.place is Place.AWAY


def test_a_handle_that_dies_in_a_refused_save_is_let_go_of() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    doomed = swapped(executor)
    tier.writes[0].end()
    executor.writes_done(0)
    tier.before_reserve.append(doomed)
    del doomed
    tier.refusal = TierFull("disk tier: no room", tier="disk")
    # when
    with pytest.raises(TierFull):
        save(executor, content(1))
    # then
    assert tier.held_bytes == 0
