"""A limit of the allocator while planned steps run, on the CUDA build of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_rig import CAPACITY_BYTES
from tests.fakecuda.test_within_peaks import MIB, on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

BUDGET_BYTES = 200 * MIB
SHARE = 0.75
"""What the user allows torch of the device."""


@pytest.mark.timeout(0)
def test_a_limit_holds_the_budget_and_is_gone_where_other_things_run(rig: Path) -> None:
    # when a net trains within 38 % of what it reserves without a budget, is evaluated with ten times as much, trains on
    # and then does so beside 9 MiB that somebody keeps
    spec = {
        "model": "plane net",
        "budget_bytes": BUDGET_BYTES,
        "share": SHARE,
        "evaluated_bytes": 10 * BUDGET_BYTES,
        "kept_bytes": 9 * MIB,
    }
    found = on_the_rig(rig, spec, "limit.py")
    # then the steps of the plan have the limit that was simulated: the budget less two segments, and half of one
    # that is never full
    for step in (found["steps"][-1], found["again"]):
        assert round(step["share"] * CAPACITY_BYTES) == BUDGET_BYTES - 4 * MIB + MIB
        assert step["peaks"][1] <= BUDGET_BYTES
        assert step["told"] == []
        for measured, simulated in zip(step["peaks"], found["simulated"], strict=True):
            assert abs(measured - simulated) <= 0.01 * simulated + MIB  # 1 % + 1 MiB
    # and the step that is observed has what the user allows, as have the evaluation and what comes afterwards
    assert found["steps"][0]["share"] == found["evaluated"] == found["after"] == SHARE
    # and beside what somebody keeps there is no limit, which is said
    assert found["beside"]["share"] == SHARE
    assert "9.0 MiB more lie on the device" in found["beside"]["told"][0]
