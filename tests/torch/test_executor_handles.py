"""Saved tensors that go away, in each of the four states; their room is given back once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from elbowroom.engine.entries import Observer
from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Handle
from tests.torch.moved_by_hand import HandTier, content, nothing_left, same, save, swapped


def leaving(executor: Executor, tier: HandTier) -> Handle:
    return swapped(executor)


def away(executor: Executor, tier: HandTier) -> Handle:
    handle = swapped(executor)
    tier.writes[-1].end()
    executor.writes_done(0)
    return handle


def returning(executor: Executor, tier: HandTier) -> Handle:
    handle = away(executor, tier)
    executor.bring_back(handle.entry)
    return handle


def on_device(executor: Executor, tier: HandTier) -> Handle:
    handle = returning(executor, tier)
    tier.reads[-1].end()
    executor.read(handle.entry)
    return handle


STATES = [leaving, away, returning, on_device]
Make = Callable[[Executor, HandTier], Handle]


def end_all(tier: HandTier, executor: Executor) -> None:
    """Every transfer under way ends, and a tick follows."""
    for transfer in (*tier.writes, *tier.reads):
        if not transfer.done():
            transfer.end()
    executor.writes_done(0)


@pytest.mark.parametrize("state", STATES)
def test_the_last_handle_takes_the_entry_with_it_in_every_state(state: Make) -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = state(executor, tier)
    # when
    del handle
    end_all(tier, executor)
    # then
    assert nothing_left(executor)


@pytest.mark.parametrize("state", STATES)
def test_an_entry_lives_as_long_as_one_of_its_two_handles(state: Make) -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    first = state(executor, tier)
    entry = first.entry
    executor.handle_made(entry)
    second = Handle(executor, entry, torch.empty(0))
    # when
    del first
    end_all(tier, executor)
    # then
    tier.ends_when_waited_for = True
    assert same(executor.read(entry), entry)
    # when
    del second
    # then
    assert nothing_left(executor)


def test_a_handle_that_dies_while_leaving_gives_the_write_up() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    # when
    del handle
    # then
    assert tier.writes[0].abandoned
    assert tier.held_bytes == 64, "a write that is under way keeps its room"
    # when
    tier.writes[0].end()
    executor.writes_done(0)
    # then
    assert nothing_left(executor)
    assert executor.counters.swapped_out_bytes == 0


def test_a_handle_that_dies_while_returning_gives_the_read_up() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = returning(executor, tier)
    # when
    del handle
    # then
    assert tier.reads[0].abandoned
    assert nothing_left(executor)


def test_a_write_that_was_given_up_twice_is_let_go_of_once() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = swapped(executor)
    executor.want(handle.entry)
    # when
    del handle
    end_all(tier, executor)
    # then
    assert nothing_left(executor)


def test_a_dead_entry_that_the_plan_still_names_is_not_brought_back() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    handle = away(executor, tier)
    entry = handle.entry
    del handle
    # when
    executor.want(entry)
    executor.bring_back(entry)
    # then
    assert tier.reads == []
    assert nothing_left(executor)


def test_a_storage_saved_again_after_its_handles_died_while_leaving_is_written_anew() -> None:
    # given: its first write was given up, so its slot holds nothing
    tier = HandTier()
    executor = Executor(tier)
    tensor = content(0)
    handle = save(executor, tensor)
    del handle
    # when
    handle = save(executor, tensor)
    del tensor
    end_all(tier, executor)
    tier.ends_when_waited_for = True
    # then
    assert same(executor.read(handle.entry), handle.entry)
    # when
    del handle
    # then
    assert nothing_left(executor)


def test_the_recorder_hears_of_each_dropped_entry_once() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    dropped: list[int] = []
    executor.observer = Observer(dropped=lambda entry: dropped.append(entry.n))
    first, second = swapped(executor, 1), swapped(executor, 2)
    end_all(tier, executor)
    executor.bring_back(second.entry)
    # when
    del first, second
    end_all(tier, executor)
    # then
    assert dropped == [1, 2]


@pytest.mark.parametrize("where", ["before_reserve", "before_read"])
def test_a_handle_that_dies_under_the_lock_neither_deadlocks_nor_stays(where: str) -> None:
    # given: the garbage collector may run anywhere, and so finalize a saved tensor inside the tier
    tier = HandTier()
    executor = Executor(tier)
    other: Handle | None = away(executor, tier)
    doomed = away(executor, tier)
    getattr(tier, where).append(doomed)
    del doomed

    def move() -> None:
        assert other is not None
        executor.bring_back(other.entry)
        swapped(executor, 5)

    # when
    worker = threading.Thread(target=move, daemon=True)
    worker.start()
    worker.join(10)
    # then
    assert not worker.is_alive()
    other = None
    end_all(tier, executor)
    assert nothing_left(executor)


def test_a_handle_that_dies_while_a_swap_back_starts_gives_its_room_back_with_it() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    other, doomed = away(executor, tier), away(executor, tier)
    tier.before_read.append(doomed)
    del doomed
    # when
    executor.bring_back(other.entry)
    # then: 64 bytes of the other one
    assert tier.held_bytes == 64


def test_a_garbage_collection_inside_the_tier_finalizes_saved_tensors_safely() -> None:
    # given: a saved tensor in a reference cycle, as an autograd graph held by an exception is
    tier = HandTier()
    executor = Executor(tier)
    cycle: list[object] = [away(executor, tier)]
    cycle.append(cycle)

    class Collecting:
        def __del__(self) -> None:
            gc.collect()

    tier.before_reserve.append(Collecting())
    del cycle
    # when
    handle = swapped(executor, 1)
    # then
    assert tier.held_bytes == 64
    # when
    del handle
    end_all(tier, executor)
    # then
    assert nothing_left(executor)


def test_handles_that_die_in_many_threads_are_all_counted() -> None:
    # given
    tier = HandTier()
    executor = Executor(tier)
    first = away(executor, tier)
    handles: list[Handle] = [first]
    for _ in range(399):
        executor.handle_made(first.entry)
        handles.append(Handle(executor, first.entry, torch.empty(0)))
    del first
    shares = [[handles.pop() for _ in range(100)] for _ in range(4)]
    # when
    threads = [threading.Thread(target=share.clear) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    # then
    assert nothing_left(executor)
