"""The guard of RAM: a request fails where the kernel would kill, and the error names the limit."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import final

import pytest
import torch

from elbowroom.engine.ram_guard import KEPT_BYTES, RamGuard, data_bytes
from elbowroom.errors import Infeasible, TierFull
from elbowroom.hardware.ram import HardLimit

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
    assert "Try a limit of 1.00 GiB (1073741824 bytes)" in str(found)  # 512 MiB + 512 MiB
    assert found.budget_bytes == 100 * MIB


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

    assert "Nothing was left." in str(guard.refusal(refused.value, 1))


def test_lifting_it_restores_the_limit_that_was_there(limit: FakeLimit) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    guard = RamGuard([limit])
    guard.stand()
    assert soft_bytes() != before[0]

    guard.lift()
    guard.lift()

    assert resource.getrlimit(resource.RLIMIT_DATA) == before


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
    wrapped = ValueError("the trainer failed")
    wrapped.__cause__ = MemoryError()
    assert guard.refusal(wrapped, 1) is not None
