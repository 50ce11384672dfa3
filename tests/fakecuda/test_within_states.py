"""Optimizer states away on the CUDA build of PyTorch: what the allocator holds beside what the plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import MIB, PAGE, assert_as_simulated, on_the_rig, rig

__all__ = ["rig"]

STATES = {"allow": ["swap", "state"]}
STEPS = 50
SETTLED = 5


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("model", "shares"),
    [
        ("wide layers", (0.65, 0.5)),
        ("wide layers with momentum", (0.75,)),
        ("language model of two blocks", (0.65,)),
    ],
)
def test_budgets_that_saves_cannot_meet_are_met_as_simulated(rig: Path, model: str, shares: tuple[float, ...]) -> None:
    # when
    found = on_the_rig(rig, {"model": model, "shares": shares, "steps": 6, "options": STATES})
    # then
    assert len(found["runs"]) == len(shares)
    for run in found["runs"]:
        assert_as_simulated(run)
        assert run["plan"]["states"] > 0


@pytest.mark.timeout(0)
def test_gradients_away_lower_the_least_budget_of_a_step_whose_backward_needs_most(rig: Path) -> None:
    # given budgets that nothing meets: each run tells the least, and trains within that
    spec = {"model": "many rows first", "shares": [0.01], "steps": 6}
    # when
    (states,) = on_the_rig(rig, {**spec, "options": STATES}, allocator={})["runs"]
    options = {"allow": ["swap", "state", "gradient"]}
    (gradients,) = on_the_rig(rig, {**spec, "options": options}, allocator={})["runs"]
    # then
    assert gradients["least_feasible_bytes"] < states["least_feasible_bytes"]
    assert_as_simulated(gradients["at_least"], page_bytes=PAGE)


@pytest.mark.timeout(0)
def test_nothing_grows_over_fifty_steps(rig: Path) -> None:
    # when
    found = on_the_rig(rig, {"model": "wide layers", "shares": [0.6], "steps": STEPS, "options": STATES})
    # then
    (run,) = found["runs"]
    assert_as_simulated(run)
    assert run["plan"]["states"] > 0
    settled = run["steps"][SETTLED:]
    for kind in ("allocated", "reserved", "pinned", "host", "held"):
        assert len({step[kind] for step in settled}) == 1, f"{kind}: {[step[kind] for step in settled]}"
    assert settled[-1]["resident"] - settled[0]["resident"] < 4 * MIB
