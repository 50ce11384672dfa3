"""What is said when memory of a CUDA device runs out."""

from __future__ import annotations

import pytest
import torch

from elbowroom.engine.full_device import FullDevice, asked_bytes

MIB = 2**20
REFUSED = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of ...")


def test_memory_that_others_took_is_said_with_the_budget_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run that holds 100 MiB of 80 GiB
    free = [80 * 1024 * MIB - 100 * MIB]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 80 * 1024 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100 * MIB)
    device = FullDevice(torch.device("cuda:0"))
    # when others take nearly all of the rest
    free[0] = 20 * MIB
    found = device.refusal(REFUSED, 250 * MIB, "in step 2")
    # then
    assert found is not None
    assert str(found) == (
        "device cuda:0: given a budget of 250.0 MiB, of which the run holds 100.0 MiB.\n"
        "It asked for 32.0 MiB more, which are not there: others took 79.88 GiB of the device since the run began.\n"
        "End what else runs there (nvidia-smi), or start again with a budget of 120.0 MiB or less."
    )
    assert found.least_feasible_bytes == 132 * MIB


def test_the_least_that_is_named_has_room_for_what_an_error_rounds_down(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a run that holds 101 MiB, and an error with two decimals
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (4096 * MIB, 8192 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 101 * MIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100 * MIB)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.06 GiB. GPU 0 has a total capacity of ...")
    # when
    found = FullDevice(torch.device("cuda:0")).refusal(error, 4096 * MIB, "in step 1")
    # then 101 MiB and 5.06 GiB, with 0.5 % of that, in whole segments of 2 MiB
    assert found is not None
    assert found.least_feasible_bytes == 5310 * MIB


def test_only_an_error_of_the_allocator_says_what_was_asked_for() -> None:
    assert asked_bytes(REFUSED) == 32 * MIB
    assert asked_bytes(RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB.")) is None
    assert asked_bytes(torch.OutOfMemoryError("of another kind")) is None
