"""Parameters away on the CUDA build of PyTorch: what the allocator holds beside what the plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import MIB, PAGE, assert_as_simulated, on_the_rig, rig

__all__ = ["rig"]

WITHOUT = {"allow": ["swap", "state", "gradient"]}
PARAMETERS = {"allow": ["swap", "state", "gradient", "parameter"]}
STEPS = 50
KIB = 1024
"""A number or two of the training's own may live across the border of two steps: each takes 512 bytes."""
SETTLED = 5


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", ["wide layers", "wide layers with momentum"])
def test_the_least_budget_is_lower_with_parameters_and_met_as_simulated(rig: Path, model: str) -> None:
    # given budgets that nothing meets: each run tells the least, and trains within that until its last plan is made
    spec = {"model": model, "shares": [0.01], "steps": 10}
    # when
    (without,) = on_the_rig(rig, {**spec, "options": WITHOUT}, allocator={})["runs"]
    (found,) = on_the_rig(rig, {**spec, "options": PARAMETERS}, allocator={})["runs"]
    # then
    assert found["least_feasible_bytes"] < without["least_feasible_bytes"]
    assert_as_simulated(found["at_least"], page_bytes=PAGE)


MOVING = ["wide layers", "wide layers with momentum", "language model of two blocks"]


@pytest.mark.timeout(0)
def test_a_device_of_the_least_budget_is_enough_from_the_first_step_on(rig: Path) -> None:
    # given models that are made within a budget that nothing meets: each run tells the least
    spec = {"models": MOVING, "inside": True}
    # when each trains on a device that refuses more than that
    found = on_the_rig(rig, spec, "first_steps.py", allocator={})
    # then
    for run in found.values():
        assert run["modes"][:2] == ["observe", "observe"]
        assert run["modes"][-1] == "plan"
        assert max(step["reserved"] for step in run["steps"]) <= run["least"]
        assert not any(run["mismatches"])


@pytest.mark.timeout(0)
def test_the_first_steps_hold_no_more_than_the_model_that_was_there_before(rig: Path) -> None:
    # given models that are on the device as the run begins
    found = on_the_rig(rig, {"models": MOVING, "inside": False}, "first_steps.py", allocator={})
    # when they train within the least budget
    observed = [
        (run["before"], run["least"], step)
        for run in found.values()
        for mode, step in zip(run["modes"], run["steps"], strict=True)
        if mode == "observe"
    ]
    # then parameters leave before the first step, which has no plan
    assert len(observed) >= len(MOVING)
    for before, least, step in observed:
        for kind in ("allocated", "reserved"):
            assert step[kind] <= max(before[kind], least), kind


@pytest.mark.timeout(0)
def test_a_language_model_runs_with_its_parameters_away_as_simulated(rig: Path) -> None:
    # given a budget that states and gradients cannot meet
    spec = {"model": "language model of two blocks", "shares": [0.43], "steps": 6, "options": PARAMETERS}
    # when
    (run,) = on_the_rig(rig, spec, allocator={})["runs"]
    # then
    assert_as_simulated(run, page_bytes=PAGE)
    # and the first plan is right: no step that follows one holds more than its plan says, nor than the budget
    assert [step["mode"] for step in run["steps"]] == ["observe"] * 2 + ["plan"] * 4
    for step in run["steps"][2:]:
        assert abs(step["allocated"] - step["simulated"]) <= KIB
        assert step["reserved"] <= run["budget_bytes"]


@pytest.mark.timeout(0)
def test_nothing_grows_over_fifty_steps(rig: Path) -> None:
    # when
    found = on_the_rig(rig, {"model": "wide layers", "shares": [0.35], "steps": STEPS, "options": PARAMETERS})
    # then
    (run,) = found["runs"]
    assert run["steps"][-1]["allocated"] <= 1.01 * run["simulated"]["allocated"]
    assert run["steps"][-1]["reserved"] <= run["budget_bytes"]
    settled = run["steps"][SETTLED:]
    for kind in ("allocated", "reserved", "pinned", "host", "held"):
        assert len({step[kind] for step in settled}) == 1, f"{kind}: {[step[kind] for step in settled]}"
    assert settled[-1]["resident"] - settled[0]["resident"] < 4 * MIB


@pytest.mark.timeout(0)
@pytest.mark.parametrize("host", [None, "24MiB"])
@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_hold_their_bytes_wherever_they_are(rig: Path, frozen: bool, host: str | None) -> None:
    # when the eight parameters are away in turn, on the host or beyond it on the disk
    spec = {"frozen": frozen, "host": host}
    found = on_the_rig(rig, spec, "parameters.py", backing_bytes=1 << 30, allocator={})
    # then all read right between steps, after writes from outside, and in the end
    assert found["away"] >= 6
    assert found["between"]
    assert found["written"]
    assert found["closed"]
    assert found["mismatches"] == 0


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", ["recurrent net", "residual net", "perceptron"])
def test_parameters_leave_beside_saves_and_every_step_is_as_planned(rig: Path, model: str) -> None:
    # given layers whose weights cuDNN reads as one block, convolutions, and saves that are the peak
    spec = {"model": model, "shares": [0.6], "steps": 6, "options": PARAMETERS}
    # when
    (run,) = on_the_rig(rig, spec, allocator={})["runs"]
    # then
    found = run.get("at_least", run)
    assert [figures["mismatches"] for figures in found["figures"]] == [0] * len(found["figures"])
