"""Two devices in one process, on the CUDA build of PyTorch: a room manages one of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.on_rig import said
from tests.fakecuda import FIXED, SHARED
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20
FIRST, SECOND = "cuda:0", "cuda:1"
SPLIT = {"split, on the first": FIRST, "split, on the second": SECOND}
CASES = (*SPLIT, "split, with its states", "two models", "on the current", "one inside another", "no such device")


@cache
def outcomes(rig: Path) -> dict[str, dict[str, Any]]:
    variables = {"FAKECUDA_DEVICES": "2", "FAKECUDA_BACKING": "0", **FIXED, **SHARED}
    found = said(rig, str(Path(__file__).with_name("devices.py")), spec={"cases": CASES}, variables=variables)
    if not found:
        pytest.skip("this rig was built before it could have two devices: build it again from tools/rig")
    for each in found.values():  # what a planned step holds beyond the budget is said, once
        assert each.get("told_of_more", 0) <= (each.get("beyond_bytes", 0) > 0)
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", SPLIT)
def test_a_model_on_two_devices_is_held_to_the_budget_of_the_one_that_is_named(rig: Path, case: str) -> None:
    # given
    found, named = outcomes(rig)[case], SPLIT[case]
    (other,) = {FIRST, SECOND} - {named}
    # then the named device holds what its plan says, and the other one what it holds without a budget
    assert found["device"] == named
    assert found["reserved"][named] == found["simulated"] <= found["budget_bytes"]
    assert found["reserved"][other] == found["plain"][other]
    assert found["modes"] == ["observe", *["plan"] * 7]
    assert found["mismatches"] == 0
    # and what stays on the other one is counted, and said once
    assert found["passed"] == [other]
    (told,) = found["told"]
    assert told.startswith(f"elbowroom: large saved tensors on {other} stay there, as the budget is for {named}")


@pytest.mark.timeout(0)
def test_states_of_the_named_device_move(rig: Path) -> None:
    found = outcomes(rig)["split, with its states"]
    assert found["categories"] == ["optimizer_state"]
    assert (found["modes"][-1], found["mismatches"], found["told"]) == ("plan", 0, [])
    assert found["swapped"][-1] > 0


@pytest.mark.timeout(0)
def test_of_two_models_that_train_in_turn_the_one_on_the_named_device_is_held_to_the_budget(rig: Path) -> None:
    found = outcomes(rig)["two models"]
    assert found["reserved"][SECOND] <= found["budget_bytes"]
    assert found["reserved"][FIRST] == found["plain"][FIRST]
    assert (found["passed"], found["mismatches"]) == ([FIRST], 0)
    # then steps of the first model keep all, those of the second move
    assert found["modes"][-4:] == ["keep", "plan"] * 2


@pytest.mark.timeout(0)
def test_without_a_name_the_current_device_is_managed(rig: Path) -> None:
    found = outcomes(rig)["on the current"]
    assert found["device"] == SECOND
    assert found["reserved"][SECOND] == found["simulated"] <= found["budget_bytes"]
    assert (found["passed"], found["told"]) == ([], [])


@pytest.mark.timeout(0)
def test_a_room_inside_that_of_another_device_is_refused_and_leaves_nothing(rig: Path) -> None:
    found = outcomes(rig)["one inside another"]
    assert found["error"] == (
        "within: given a room for cuda:1 inside another one for cuda:0; allowed is one at a time in a process, as it "
        "carries out the steps of all optimizers, whatever device their parameters are on; give the one room the "
        "device that is short of memory (what is on others stays there), or train on each in its own process"
    )
    assert found["then"] == SECOND


@pytest.mark.timeout(0)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(rig: Path) -> None:
    found = outcomes(rig)["no such device"]
    assert found["error"] == "within: given device='cuda:2'; allowed are 'cpu' and 'cuda:0', 'cuda:1'; take one"
