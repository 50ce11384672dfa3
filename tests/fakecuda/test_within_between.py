"""What runs between the steps of a training within a budget, on the CUDA build of PyTorch: it is no part of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig


@pytest.mark.timeout(0)
def test_an_evaluation_that_goes_beyond_the_budget_is_said_once_with_by_how_much(rig: Path) -> None:
    # given steps that fit, and evaluations of eight times the rows: three storages of 128 MiB
    found = on_the_rig(rig, {"budget": "330MiB", "rows": 8 * 8192, "steps": 6}, "between.py")
    # then
    assert found["held_bytes"] > found["budget_bytes"]
    assert 0 < found["beyond_bytes"] <= found["held_bytes"] - found["budget_bytes"]
    (told,) = found["told"]
    assert told.startswith("elbowroom: after step 3 cuda:0 holds ")
    assert "more than the budget of 330.0 MiB. No plan knows of what runs between steps" in told
    # and in the end, and it is no mismatch
    assert found["summary"][-1].startswith("  THE BUDGET WAS NOT HELD: ")
    assert found["mismatches"] == 0


@pytest.mark.timeout(0)
def test_an_evaluation_that_fits_is_none_to_speak_of(rig: Path) -> None:
    found = on_the_rig(rig, {"budget": "330MiB", "rows": 1024, "steps": 6}, "between.py")
    assert found["held_bytes"] <= found["budget_bytes"]
    assert (found["beyond_bytes"], found["told"]) == (0, [])
