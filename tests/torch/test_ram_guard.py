"""The guard of RAM: a request fails where the kernel would kill, and the error names the limit."""

from __future__ import annotations

import gc
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn, final

import pytest
import torch

import elbowroom as er
from elbowroom.engine.ram_guard import KEPT_BYTES, RESERVED_BYTES, LeastLimit, RamGuard, data_bytes
from elbowroom.engine.residence import RamResidence, most_ever_bytes, most_resident_bytes, resident_bytes, trim
from elbowroom.errors import Infeasible, TierFull
from elbowroom.hardware import ram
from elbowroom.hardware.ram import HardLimit
from elbowroom.run import background_planning, hard_room
from elbowroom.run.forked import NoRoom, forked
from elbowroom.run.room import Room, run_of
from elbowroom.run.step_planning import plan_of_calls

MIB = 2**20


@final
class FakeLimit(HardLimit):
    """A limit that leaves what the test says."""

    def __init__(self, left_bytes: int, *, kills: bool = True) -> None:
        super().__init__("memory cgroup /job", 512 * MIB)
        self.left = left_bytes
        self.kills = kills

    def left_bytes(self) -> int:
        return self.left


@final
class FallingLimit(HardLimit):
    """A limit that leaves less as this process takes more, as a true one does."""

    def __init__(self, left_bytes: int) -> None:
        super().__init__("memory cgroup /job", 512 * MIB)
        gc.collect()
        trim()
        self.all_bytes = left_bytes + resident_bytes()

    def left_bytes(self) -> int:
        return self.all_bytes - resident_bytes()


@pytest.fixture
def limit() -> FakeLimit:
    return FakeLimit(256 * MIB)


@pytest.fixture
def guard(limit: FakeLimit) -> Iterator[RamGuard]:
    made = RamGuard([limit])
    made.stand()
    yield made
    made.lift()


def soft_bytes() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_a_block_that_is_not_left_is_refused_and_smaller_ones_are_not(guard: RamGuard) -> None:
    torch.empty(128 * MIB, dtype=torch.uint8)

    with pytest.raises(RuntimeError, match="allocate memory") as refused:
        torch.empty(512 * MIB, dtype=torch.uint8)

    found = guard.refusal(refused.value, 100 * MIB)
    assert isinstance(found, Infeasible)
    assert str(found).startswith("memory: memory cgroup /job allows 512.0 MiB (536870912 bytes).")
    assert "Its last request, 512.0 MiB, goes beyond it." in str(found)
    assert "Try a limit of at least 1.00 GiB (1073741824 bytes)" in str(found)  # 512 MiB + 512 MiB
    assert found.budget_bytes == 100 * MIB


def test_a_refusal_names_what_is_known_besides_the_size_of_the_request(guard: RamGuard) -> None:
    asked = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes.")

    said = str(guard.refusal(asked, 100 * MIB))
    captured = str(guard.refusal(asked, 100 * MIB, LeastLimit(768 * MIB, is_captured=True)))
    seen = str(guard.refusal(asked, 100 * MIB, LeastLimit(530 * MIB, is_captured=False)))

    assert "Try a limit of at least 768.0 MiB (805306368 bytes), as a capture of the script shows, or" in captured
    assert "Try a limit of at least 544.0 MiB (570425344 bytes)" in said  # 512 MiB + 32 MiB
    assert "Try a limit of at least 530.0 MiB (555745280 bytes)" in seen
    assert "capture" not in said + seen


def test_the_guard_follows_what_is_left(guard: RamGuard, limit: FakeLimit) -> None:
    limit.left = 1024 * MIB
    guard.follow(now=True)

    # what is held as data, and what is left, less what stays free
    assert soft_bytes() == pytest.approx(data_bytes() + 1024 * MIB - KEPT_BYTES, abs=MIB)
    torch.empty(512 * MIB, dtype=torch.uint8)


def test_almost_nothing_left_is_refused_where_the_run_has_control(guard: RamGuard, limit: FakeLimit) -> None:
    limit.left = MIB

    with pytest.raises(MemoryError) as refused:
        guard.follow(now=True)

    assert "whose size is not known, goes beyond it" in str(guard.refusal(refused.value, 1))


def test_the_limit_that_a_refused_request_needs_has_room_for_what_was_missing(guard: RamGuard) -> None:
    # given 512 MiB, of which 256 are left, and 16 of these are kept: 300 - 240 are missing
    assert guard.needed_bytes(100 * MIB) == 512 * MIB
    assert guard.needed_bytes(300 * MIB) == (512 + 60) * MIB


def test_lifting_it_restores_the_limit_that_was_there(limit: FakeLimit) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    guard = RamGuard([limit])
    guard.stand()
    assert soft_bytes() != before[0]

    guard.lift()
    guard.lift()

    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def watching() -> int:
    return [each.name for each in threading.enumerate()].count("elbowroom limit")


def test_little_left_before_the_first_step_is_said_once_and_nothing_is_refused(
    limit: FakeLimit, capfd: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    guard = RamGuard([limit])
    guard.stand_by()
    try:
        # when weights are loaded, and then a bit more
        limit.left = 60 * MIB
        until = time.monotonic() + 30
        while watching() and time.monotonic() < until:
            time.sleep(0.01)
        # then the thread has ended with its line
        said = capfd.readouterr().err
        assert said.startswith("elbowroom: memory cgroup /job allows 512.0 MiB, of which 60.0 MiB are left before the")
        assert said.count("\n") == 1
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
        # and the guard stands with the first step
        guard.stand()
        assert (watching(), soft_bytes() < before[0] or before[0] < 0) == (1, True)
    finally:
        guard.lift()
    assert watching() == 0


def test_where_much_is_left_until_the_first_step_nothing_is_said(
    limit: FakeLimit, capfd: pytest.CaptureFixture[str]
) -> None:
    guard = RamGuard([limit])
    guard.stand_by()
    assert watching() == 1
    guard.stand()
    assert watching() == 1
    guard.lift()
    assert (watching(), capfd.readouterr().err) == (0, "")


def test_a_forked_child_has_the_limit_that_was_there(guard: RamGuard) -> None:
    guarded_bytes = soft_bytes()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, str(soft_bytes()).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert int(os.read(reading, 100)) != guarded_bytes
    os.close(reading)
    os.close(writing)


def test_a_limit_that_does_not_kill_needs_no_guard() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    guard = RamGuard([FakeLimit(MIB, kills=False)])

    guard.stand()

    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_errors_that_are_not_for_lack_of_memory_stay_what_they_are(guard: RamGuard) -> None:
    assert guard.refusal(RuntimeError("shapes do not fit"), 1) is None
    assert guard.refusal(TierFull("disk tier: no room", tier="disk"), 1) is None
    assert guard.refusal(OSError(2, "no such file"), 1) is None
    assert guard.refusal(OSError(12, "cannot allocate memory"), 1) is not None
    assert guard.refusal(SystemError("error return without exception set"), 1) is not None
    assert guard.refusal(SystemError("bad argument to internal function"), 1) is None
    assert guard.refusal(RuntimeError("could not execute a primitive"), 1) is not None  # oneDNN's words
    wrapped = ValueError("the trainer failed")
    wrapped.__cause__ = MemoryError()
    assert guard.refusal(wrapped, 1) is not None


# Runs


def train(steps: int = 4) -> None:
    """Steps of eight sines that save 4 MiB each."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    model = torch.nn.Sequential(layer, *[Sine() for _ in range(8)])
    data = torch.randn(4096, 256)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


@final
class Sine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def budget_of(room: Room) -> int:
    return run_of(room).budget_bytes


def test_auto_follows_what_the_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: 200 MiB are left, of which 16 stay free for small blocks and 24 for what differs from step to step
    limit = FallingLimit(200 * MIB)
    monkeypatch.setattr(ram, "hard_limits", lambda: (limit,))

    with er.within("auto") as room:
        train()

    # what storages hold after a step, about 4 MiB, is theirs too; the peak of the process may have been before
    assert budget_of(room) <= (200 - 16 - 24 + 16) * MIB
    assert room.steps[-1].mode == "keep"


def test_a_given_budget_is_held_to_what_the_limit_leaves_and_is_never_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = FakeLimit(1024 * MIB, kills=False)
    monkeypatch.setattr(ram, "hard_limits", lambda: (limit,))

    with er.within("30MiB") as room:
        train()
        assert budget_of(room) == 30 * MIB

    with er.within("4GiB") as room:
        with pytest.warns(RuntimeWarning, match="and memory cgroup /job allows 512"):
            train()
        assert budget_of(room) < 1024 * MIB


def test_where_no_plan_holds_what_the_limit_leaves_the_training_goes_on_as_in_its_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = FakeLimit(45 * MIB, kills=False)
    monkeypatch.setattr(ram, "hard_limits", lambda: (limit,))

    with pytest.warns(RuntimeWarning, match="no plan holds steps below it"), er.within() as room:
        train(5)

    assert [step.mode for step in room.steps] == ["observe", "observe", "frugal", "frugal", "frugal"]
    # and a limit is named, above the one there is
    named = re.search(r"5 steps, no plan: no plan holds steps\. A limit of .* \((\d+) bytes\) would do", room.summary())
    assert named is not None, room.summary()
    assert limit.limit_bytes < int(named[1]) < limit.limit_bytes + 45 * MIB


def test_a_given_budget_that_no_plan_meets_is_refused_below_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "hard_limits", lambda: (FakeLimit(512 * MIB, kills=False),))

    with pytest.raises(Infeasible, match=r"budget: given 5\.0 MiB"), er.within("5MiB"):
        train()


def test_a_recording_that_there_is_no_room_to_read_is_dropped_and_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: object) -> None:
        raise NoRoom

    monkeypatch.setattr(ram, "hard_limits", lambda: (FakeLimit(1024 * MIB, kills=False),))
    with monkeypatch.context() as patched:
        patched.setattr(hard_room, "forked", no_room)
        with pytest.warns(RuntimeWarning, match="cannot be read below it"), er.within() as room:
            train()
    assert [step.mode for step in room.steps] == ["observe", "observe", "frugal", "frugal"]

    with er.within() as room:  # the profiler is free again
        train()
    assert room.plan is not None


@pytest.mark.parametrize("short", ["to read what was recorded", "to plan"])
def test_where_a_limit_has_no_room_for_a_moment_the_next_step_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    times = iter([short == "to read what was recorded", short == "to plan"])

    def at_times(*given: Any) -> Any:
        if next(times, False):
            raise NoRoom
        return forked(*given)

    monkeypatch.setattr(ram, "hard_limits", lambda: (FakeLimit(1024 * MIB, kills=False),))
    monkeypatch.setattr(hard_room, "forked", at_times)
    with er.within("30MiB") as room:
        train(6)
    assert [step.mode for step in room.steps[:2]] == ["observe", "observe"]
    assert room.plan is not None


@pytest.mark.parametrize("denied", [0, 1])
def test_recomputes_are_planned_in_a_child_below_a_limit(monkeypatch: pytest.MonkeyPatch, denied: int) -> None:
    # given: a plan with recomputes takes what planning takes, and would leave holes in the heap of the training
    works: list[object] = []

    def child(work: Any, *given: Any) -> Any:
        works.append(getattr(work, "func", None))
        if 0 < works.count(plan_of_calls) <= denied:
            raise NoRoom
        return forked(work, *given)

    def here(*_: object) -> NoReturn:
        raise AssertionError("planned in the training's process")

    monkeypatch.setattr(ram, "hard_limits", lambda: (FakeLimit(1024 * MIB, kills=False),))
    monkeypatch.setattr(hard_room, "forked", child)
    monkeypatch.setattr(background_planning, "_Making", here)

    with er.within("30MiB", allow=("recompute",)) as room:
        train(8)

    assert works.count(plan_of_calls) == 1 + denied
    assert room.plan is not None
    assert room.plan.recomputes
    assert [step.mode for step in room.steps] == ["observe"] * (3 + denied) + ["plan"] * (5 - denied)


def test_what_a_step_took_of_the_bytes_that_stay_free_is_counted(guard: RamGuard, limit: FakeLimit) -> None:
    residence = RamResidence(guard=guard)
    residence.step_begins()
    trim()
    before_bytes = resident_bytes()
    block = torch.ones(65 * MIB, dtype=torch.uint8)  # the kernel counts pages in batches: some are not counted yet
    del block
    trim()

    # 16 MiB are left beyond those that stay free, and the step had taken 64 MiB and more beyond what was held before
    limit.left = KEPT_BYTES + 16 * MIB
    taken_bytes = most_resident_bytes() - before_bytes
    assert taken_bytes >= 64 * MIB
    assert residence.short_bytes() == pytest.approx(taken_bytes - 16 * MIB, abs=4 * MIB)
    limit.left = KEPT_BYTES + 256 * MIB
    assert residence.short_bytes() == 0
    assert most_ever_bytes() >= resident_bytes()


def test_an_error_in_which_python_hid_that_nothing_was_left_is_refused_too(guard: RamGuard, limit: FakeLimit) -> None:
    assert guard.refusal(OSError("could not get source code"), 64 * MIB) is None
    limit.left = 2 * MIB
    assert guard.refusal(OSError("could not get source code"), 64 * MIB) is not None
    assert guard.refusal(FileNotFoundError(2, "no such file"), 64 * MIB) is None


def test_memory_for_the_error_is_mapped_and_goes_back_as_it_is_explained(limit: FakeLimit) -> None:
    before_bytes = data_bytes()
    guard = RamGuard([limit])
    held_bytes = data_bytes() - before_bytes
    assert held_bytes >= RESERVED_BYTES
    # when a run ends with an error
    assert guard.refusal(MemoryError(), 64 * MIB) is not None
    assert data_bytes() - before_bytes <= held_bytes - RESERVED_BYTES


def test_the_most_that_was_resident_is_not_that_of_the_process_that_started_this_one() -> None:
    # given a parent that holds more than a child takes
    held = bytearray(b"x") * (resident_bytes() + 256 * MIB)
    asks = "from elbowroom.engine.residence import most_resident_bytes; print(most_resident_bytes())"
    # when
    found = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    # then
    assert int(found.stdout) < len(held) - 128 * MIB


def test_a_guard_that_stands_alone_follows_what_is_left_by_itself() -> None:
    # given a limit that leaves more once another process has ended
    limit = FakeLimit(64 * MIB)
    guard = RamGuard([limit])
    guard.stand(alone=True)
    try:
        before = resource.getrlimit(resource.RLIMIT_DATA)[0]
        # when
        limit.left = 512 * MIB
        # then
        until = time.monotonic() + 30
        while resource.getrlimit(resource.RLIMIT_DATA)[0] < before + 400 * MIB and time.monotonic() < until:
            time.sleep(0.01)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] >= before + 400 * MIB
    finally:
        guard.lift()


def test_a_rank_counts_on_its_part_of_a_limit_that_kills_and_on_all_of_its_own(limit: FakeLimit) -> None:
    # 256 / 4 = 64 MiB of the container's limit, and 128 MiB of a limit on this process alone
    own = FakeLimit(128 * MIB, kills=False)

    assert RamGuard([limit, own], 4).own_left_bytes() == 64 * MIB - KEPT_BYTES
    assert RamGuard([limit, own], 4).left_bytes() == 128 * MIB - KEPT_BYTES
    assert RamGuard([limit, own], 1).own_left_bytes() == 128 * MIB - KEPT_BYTES
