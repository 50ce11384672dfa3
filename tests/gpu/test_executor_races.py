"""On a GPU: every transition of the executor's table, with each of the streams held up in turn.

What a storage holds is read by a kernel on the reader's stream, so a wait that is missing shows as wrong bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from elbowroom.engine.cuda_device import tiers_below
from elbowroom.engine.entries import Entry, Place, Remake
from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Handle
from elbowroom.engine.tiers.streams import bytes_of
from elbowroom.errors import TierError
from elbowroom.units import parse_budget
from tests.gpu.slow import needs_kernels, sleep, slow

pytestmark = [pytest.mark.gpu, needs_kernels]

MIB = 2**20
SIZE_BYTES = 8 * MIB
SLOW = ("nothing", "out", "back")
OTHER = 250


@pytest.fixture(params=SLOW)
def held_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which stream of copies is slow."""
    if request.param != "nothing":
        slow(monkeypatch, request.param)
    return request.param


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    """Host memory of 40 MiB below the device, and a disk."""
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    made = Executor(tiers_below(device, parse_budget("1GiB,host=40MiB"), str(tmp_path), 1 << 30), device=device)
    yield made
    with suppress(TierError):
        made.close()


def filled(value: int) -> Tensor:
    """What a kernel that comes late makes, on the current stream."""
    sleep()
    return torch.full((SIZE_BYTES,), value, dtype=torch.uint8, device="cuda")


def saved(executor: Executor, value: int) -> Handle:
    """A storage on the device that nobody but its handle holds."""
    tensor = filled(value)
    return Handle(executor, executor.add(value, tensor.untyped_storage(), 0), tensor)


def leaving(executor: Executor, value: int) -> Handle:
    """A storage that is on its way to the host."""
    tensor = filled(value)
    entry = executor.add(value, tensor.untyped_storage(), 0)
    executor.swap_out(entry)
    return Handle(executor, entry, tensor)


def overwritten() -> list[Tensor]:
    """All memory that is free in the cache, filled with something else by later kernels."""
    return [torch.full((SIZE_BYTES,), OTHER, dtype=torch.uint8, device="cuda") for _ in range(4)]


def coming_back(executor: Executor, value: int) -> Handle:
    """One that was away, and whose copy back has begun."""
    handle = leaving(executor, value)
    executor.writes_done(1)
    executor.bring_back(handle.entry)
    return handle


def differs(tensor: Tensor, value: int) -> int:
    """Bytes that a kernel on the current stream finds different."""
    return int((tensor != value).sum())


def wrong(executor: Executor, entry: Entry, value: int) -> int:
    """Bytes of an entry that its reader finds different."""
    return differs(bytes_of(executor.read(entry)), value)


def overrun(others: list[Tensor]) -> int:
    """Bytes of others that were overwritten."""
    return sum(differs(other, OTHER) for other in others)


def test_from_on_device_by_leaving_to_away_and_by_a_planned_tick_back(executor: Executor, held_up: str) -> None:
    # given a storage that a late kernel makes
    handle = leaving(executor, 1)
    assert handle.entry.place is Place.LEAVING
    # when its memory goes to others where the schedule says
    executor.writes_done(1)
    assert handle.entry.place is Place.AWAY
    others = overwritten()
    # and a planned tick asks for it
    executor.bring_back(handle.entry)
    assert handle.entry.place is Place.RETURNING
    # then
    assert wrong(executor, handle.entry, 1) == 0
    assert handle.entry.place is Place.ON_DEVICE
    assert overrun(others) == 0


def test_from_away_by_a_read_that_comes_first(executor: Executor, held_up: str) -> None:
    handle = leaving(executor, 2)
    executor.writes_done(1)
    others = overwritten()
    # when nobody has asked for it
    assert wrong(executor, handle.entry, 2) == 0
    # then
    assert handle.entry.place is Place.ON_DEVICE
    assert overrun(others) == 0


def test_from_leaving_back_to_on_device_where_it_is_wanted_first(executor: Executor, held_up: str) -> None:
    # given
    handle = leaving(executor, 3)
    storage = handle.entry.alive()
    # when it is wanted while its copy has not begun
    executor.want(handle.entry)
    executor.writes_done(1)
    # then it is the same storage, and its room on the host goes to another one without harm
    assert handle.entry.alive() is storage
    assert handle.entry.place is Place.ON_DEVICE
    assert wrong(executor, handle.entry, 3) == 0
    other = leaving(executor, 4)
    executor.writes_done(2)
    assert wrong(executor, other.entry, 4) == 0
    assert wrong(executor, handle.entry, 3) == 0


def test_a_copy_back_comes_after_a_kernel_that_still_reads_its_memory(executor: Executor, held_up: str) -> None:
    # given
    handle = leaving(executor, 5)
    executor.writes_done(1)
    before = filled(6)
    torch.cuda.synchronize()
    # when a late kernel reads memory that is freed meanwhile, and that the storage then gets
    sleep()
    kept = before.clone()
    del before
    executor.bring_back(handle.entry)
    # then
    assert wrong(executor, handle.entry, 5) == 0
    assert differs(kept, 6) == 0


def test_a_reader_on_another_stream_waits_and_keeps_the_memory_until_it_is_done(
    executor: Executor, held_up: str
) -> None:
    # given
    handle = coming_back(executor, 7)
    stream = torch.cuda.Stream()
    # when a kernel on another stream reads it late, and its last handle dies before
    with torch.cuda.stream(stream):
        storage = executor.read(handle.entry)
        sleep()
        found = bytes_of(storage).clone()
    del handle, storage
    others = overwritten()
    stream.synchronize()
    # then
    assert differs(found, 7) == 0
    assert overrun(others) == 0


def test_the_room_of_one_stream_on_the_host_goes_to_another_after_its_copy_back(
    executor: Executor, held_up: str
) -> None:
    # given a copy back that is under way when its storage dies
    first = coming_back(executor, 8)
    storage = executor.read(first.entry)
    found = bytes_of(storage).clone()
    del first, storage
    # when another stream has its room on the host
    with torch.cuda.stream(torch.cuda.Stream()):
        second = leaving(executor, 9)
        executor.writes_done(2)
        assert wrong(executor, second.entry, 9) == 0
    # then
    assert differs(found, 8) == 0


def test_what_the_host_has_no_room_for_goes_on_to_the_disk_and_comes_back(executor: Executor, held_up: str) -> None:
    # given ten storages of 8 MiB, and 40 MiB of host memory
    handles = [leaving(executor, value) for value in range(10)]
    executor.settle()
    others = overwritten()
    # when they come back, the last one first
    for value in reversed(range(10)):
        # then
        assert wrong(executor, handles[value].entry, value) == 0
    assert overrun(others) == 0


@pytest.mark.parametrize("asked", [True, False])
def test_an_optimizer_state_leaves_its_storage_and_comes_back_to_it(
    executor: Executor, held_up: str, asked: bool
) -> None:
    # given
    state = filled(10)
    entry = executor.leave(0, state.untyped_storage())
    executor.writes_done(1)
    assert state.untyped_storage().nbytes() == 0
    others = overwritten()
    # when
    if asked:
        executor.bring_back(entry)
    executor.arrive(entry)
    # then
    assert differs(state, 10) == 0
    assert overrun(others) == 0


class Late(Remake):
    """A recipe: a late kernel fills new storages."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.values: dict[int, Entry] = {}

    def run(self) -> None:
        for value, entry in self.values.items():
            self._executor.rebuilt(entry, filled(value).untyped_storage())


@pytest.mark.parametrize("planned", [True, False])
def test_what_is_dropped_is_rebuilt_at_its_tick_or_at_a_read_that_comes_first(
    executor: Executor, planned: bool
) -> None:
    # given
    handle, recipe = saved(executor, 11), Late(executor)
    recipe.values[11] = handle.entry
    executor.drop(handle.entry, recipe)
    handle.let_go()
    assert handle.entry.place is Place.DROPPED
    others = overwritten()
    # when
    if planned:
        recipe.run()
    # then
    assert wrong(executor, handle.entry, 11) == 0
    assert handle.entry.place is Place.ON_DEVICE
    assert overrun(others) == 0


def test_what_is_dropped_while_somebody_holds_it_stays(executor: Executor) -> None:
    # given
    handle, recipe = saved(executor, 12), Late(executor)
    storage = handle.entry.alive()
    executor.drop(handle.entry, recipe)
    # when
    assert executor.hold(handle.entry)
    # then
    assert handle.entry.alive() is storage
    assert wrong(executor, handle.entry, 12) == 0
