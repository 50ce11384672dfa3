"""Texts of many lengths within a budget on the CUDA build of PyTorch: it is held in steps of every length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

STEPS = 43


@pytest.mark.timeout(0)
@pytest.mark.parametrize("share", [0.9, 0.75])
def test_a_budget_is_held_in_steps_of_every_length(rig: Path, share: float) -> None:
    # when 40 of 43 texts have lengths of their own, between 128 and 512
    found = on_the_rig(rig, {"model": "texts of many lengths", "shares": [share], "steps": STEPS})
    # then free memory of other lengths is never beside what a step needs
    (run,) = found["runs"]
    assert [step["reserved"] for step in run["steps"][1:] if step["reserved"] > run["budget_bytes"]] == []
    assert sum(each["mismatches"] for each in run["figures"]) == 0
    # and ranges of which the least is 0.8 of the greatest, of which 7 cover all, are observed
    assert [step["mode"] for step in run["steps"]].count("observe") <= 3 * 7
    assert sum(each["out"] for each in run["figures"][3:]) > 0
