"""A budget that only an emptied cache holds, on the CUDA build of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import MIB, on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

BUDGET_BYTES = 200 * MIB
SHARE = 0.75
"""What the user allows torch of the device."""


@pytest.mark.timeout(0)
def test_an_emptied_cache_holds_the_budget_and_nothing_else_is_limited(rig: Path) -> None:
    # when a net trains within 38 % of what it reserves without a budget, is evaluated with ten times as much, trains on
    # and then does so beside 5 MiB that somebody keeps
    spec = {
        "model": "plane net",
        "budget_bytes": BUDGET_BYTES,
        "share": SHARE,
        "evaluated_bytes": 10 * BUDGET_BYTES,
        "kept_bytes": 5 * MIB,
    }
    found = on_the_rig(rig, spec, "limit.py")
    # then planned steps hold what was simulated, within the budget, and nothing is warned of
    for step in (found["steps"][-1], found["again"]):
        assert step["peaks"][1] <= BUDGET_BYTES
        assert step["told"] == []
        for measured, simulated in zip(step["peaks"], found["simulated"], strict=True):
            assert abs(measured - simulated) <= 0.01 * simulated + MIB  # 1 % + 1 MiB
    # and torch may have what the user allows at all times, so that what nobody planned for goes on
    shares = [*(step["share"] for step in found["steps"]), found["evaluated"], found["beside"]["share"], found["after"]]
    assert set(shares) == {SHARE}
