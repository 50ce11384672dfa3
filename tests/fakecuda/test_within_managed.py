"""Managed memory beyond a budget, on the CUDA build of PyTorch: who gets it, how much, and what is left of it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import outcomes_of
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20
CASES = (
    "beyond", "too little", "none", "within the budget", "more than the device has",
    "lives on", "threads", "no such device", "not divided", "small"
)  # fmt: skip
outcomes = partial(outcomes_of, "managed.py", CASES)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", CASES)
def test_every_limit_is_put_back_and_all_managed_memory_given_back(rig: Path, case: str) -> None:
    found = outcomes(rig)[case]
    assert (found["share"], found["left"]) == (1.0, 0)


@pytest.mark.timeout(0)
def test_what_no_plan_keeps_within_the_budget_lies_in_managed_memory(rig: Path) -> None:
    # given 15 % of what plain training reserves, and as much managed memory as that
    found = outcomes(rig)["beyond"]
    # then a plan is followed to the end, on the device within the budget
    assert (found["error"], found["modes"][-1]) == ("", "plan")
    assert 0 < found["on_device"] <= found["budget_bytes"]
    # and no more lies there than the least plan needs beyond it, but for what two places for storages of 16 MiB waste
    least_bytes = outcomes(rig)["none"]["least_bytes"]
    assert least_bytes - found["budget_bytes"] <= found["used"] <= least_bytes - found["budget_bytes"] + 2 * 16 * MIB


@pytest.mark.timeout(0)
def test_what_is_beyond_both_is_refused(rig: Path) -> None:
    # given 32 MiB of managed memory, which with the budget are less than any plan needs
    found = outcomes(rig)["too little"]
    assert found["has"] == 32 * MIB
    assert found["error"].startswith(("OutOfMemoryError: CUDA out of memory", "Infeasible: "))


@pytest.mark.timeout(0)
def test_without_managed_memory_the_same_budget_cannot_be_met(rig: Path) -> None:
    assert outcomes(rig)["none"]["error"].startswith("Infeasible: ")


@pytest.mark.timeout(0)
def test_a_plan_within_the_budget_uses_none_of_it(rig: Path) -> None:
    found = outcomes(rig)["within the budget"]
    assert (found["error"], found["used"]) == ("", 0)
    assert 0 < found["on_device"] <= found["budget_bytes"]


@pytest.mark.timeout(0)
def test_what_is_used_lives_on_and_nothing_is_added_after_the_end(rig: Path) -> None:
    # given 16 MiB that were asked for where the budget had 4 MiB left
    found = outcomes(rig)["lives on"]
    assert (found["used"], found["used_after"]) == (16 * MIB, 16 * MIB)


@pytest.mark.timeout(0)
def test_every_thread_gets_it_and_one_stream(rig: Path) -> None:
    found = outcomes(rig)["threads"]
    assert (found["thread"], found["backward"], found["small"]) == (True, [True, True], True)
    assert found["other stream"] == "OutOfMemoryError"


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no such device", "allowed is a device that reaches managed memory while the host has it"),
        ("not divided", "allowed is torch's own allocator without max_split_size_mb"),
        ("small", "given managed=16.0 MiB; allowed are 32.0 MiB and more"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_with_the_reason(rig: Path, case: str, said: str) -> None:
    found = outcomes(rig)[case]
    assert found["error"].startswith("UsageError: within: given managed=")
    assert said in found["error"]


@pytest.mark.timeout(0)
def test_a_limit_that_cannot_be_set_is_said_with_the_size_up_to_which_it_can(rig: Path) -> None:
    # given 48 GiB of managed memory beside a budget of a device of 40 GiB
    found = outcomes(rig)["more than the device has"]
    # then the run goes on
    assert (found["error"], found["modes"][-1], found["has"]) == ("", "plan", 48 * 1024 * MIB)
    # and what of them would leave a limit is said
    (told,) = found["told"]
    most = 40 * 1024 - math.ceil(found["budget_bytes"] / MIB)
    assert "cannot be above that, so the device may hold more than the budget before managed memory begins" in told
    assert told.endswith(f"Give managed={most}MiB or less for a budget that is held")
    assert outcomes(rig)["beyond"]["told"] == []
