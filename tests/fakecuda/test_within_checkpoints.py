"""Checkpoints of trainings whose optimizer states are away, on the CUDA build of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakecuda.test_within_peaks import MIB, PAGE, on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

BUDGET = "device=152MiB"
"""Less than what the training needs with its states on the device, which are 64 MiB."""
STATES_STAY = "of optimizer states stay on the host"


def checkpointed(rig: Path, budget: str = BUDGET, capacity_bytes: int = 0) -> dict[str, Any]:
    spec = {"budget": budget, "capacity_bytes": capacity_bytes}
    return on_the_rig(rig, spec, "checkpoints.py", backing_bytes=1 << 30, allocator={})


@pytest.mark.timeout(0)
def test_a_state_dict_has_states_that_are_away_on_the_host_and_goes_on_to_show_them(rig: Path) -> None:
    # when state dicts are taken between the steps of a plan that moves states, saved, and kept
    found = checkpointed(rig)
    # then they hold what the states held, and the steps keep within the budget while one is alive
    assert found["swapped"] > 0
    assert "cpu" in found["first"]["devices"]
    assert found["first"]["values"] == [0.25]
    assert found["loaded"]["values"] == [0.25]
    assert found["with state dict"] <= found["budget_bytes"] + PAGE
    # and the one that was kept shows what was written to the states later, as any state dict does
    assert found["later"] == {"devices": found["first"]["devices"], "values": [0.5]}
    # and all is on the device in the end
    assert found["closed"] == found["state dict when closed"] == {"devices": ["cuda"], "values": [0.5]}
    assert found["mismatches"] == 0


@pytest.mark.timeout(0)
@pytest.mark.parametrize("budget", [BUDGET, f"{BUDGET},host=20MiB"])
def test_states_that_a_full_device_has_no_room_for_as_a_run_ends_stay_on_the_host(rig: Path, budget: str) -> None:
    # when the device has room for weights and gradients, but not for all states
    found = checkpointed(rig, budget, capacity_bytes=132 * MIB)
    # then no byte of them is lost
    assert found["closed"] == found["state dict when closed"] == {"devices": ["cpu", "cuda"], "values": [0.5]}
    # and it is said
    assert sum(STATES_STAY in each for each in found["told"]) == 1
