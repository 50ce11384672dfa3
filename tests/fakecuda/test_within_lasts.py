"""Fifty steps within a budget on the CUDA build of PyTorch: nothing grows, on the device or on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20
STEPS, SETTLED = 50, 10


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", ["perceptron", "residual net"])
def test_nothing_grows_over_fifty_steps(rig: Path, model: str) -> None:
    # when
    found = on_the_rig(rig, {"model": model, "shares": [0.7], "steps": STEPS})
    # then
    (run,) = found["runs"]
    settled = run["steps"][SETTLED:]
    for kind in ("allocated", "reserved", "pinned", "host", "held"):
        assert len({step[kind] for step in settled}) == 1, f"{kind}: {[step[kind] for step in settled]}"
    assert settled[-1]["resident"] - settled[0]["resident"] < 4 * MIB
    assert run["after"]["host"] == 0
