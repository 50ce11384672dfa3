"""A limit that gets lower in the middle of a training on the CUDA build of PyTorch: it goes on, or says who took what.

Page-locked memory that is refused from the start, and disks that fail, are in test_within_faults.py; disks that fill up
below RAM in tests/torch/test_faults_disk.py.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig
from tests.torch.small_disk import small_disk_in

GOES_ON = (
    "half of what is free, while a step is observed",
    "half of what is free, in planned steps",
    "all that is free, in planned steps",
    "page-locked memory refused in the middle",
)
STEPS = 8
TAKEN = "all that is free, after the first step"
NOTHING_LEAVES = "all that is free, where nothing may leave"
FULL = "a disk that fills up"


@cache
def _outcomes(rig: Path, small_disk: Path) -> dict[str, Any]:
    return on_the_rig(
        rig, {"cases": [*GOES_ON, TAKEN, NOTHING_LEAVES, FULL], "small_disk": str(small_disk)}, "hard_limit.py"
    )


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with small_disk_in(tmp_path_factory, "80m") as directory:
        yield directory


def outcome(rig: Path, small_disk: Path, case: str) -> dict[str, Any]:
    """One case, of which nothing is left: the same training then runs within a budget."""
    found = _outcomes(rig, small_disk)[case]
    assert found["left"] == {"device": 0, "files": 0, "threads": 0}
    assert found["left_on_host"] == 0
    assert found["then"] == "plan"
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", GOES_ON)
def test_a_training_goes_on_with_what_it_holds(rig: Path, small_disk: Path, case: str) -> None:
    found = outcome(rig, small_disk, case)
    assert "error" not in found
    assert (found["steps"], found["mode"]) == (STEPS, "plan")


@pytest.mark.timeout(0)
def test_a_training_goes_on_if_others_take_all_that_is_free_after_a_first_step_that_holds_little(
    rig: Path, small_disk: Path
) -> None:
    # when the next step, which follows its plan, asks for more
    found = outcome(rig, small_disk, TAKEN)
    # then what idles leaves in its place
    assert "error" not in found
    assert (found["steps"], found["mode"]) == (STEPS, "plan")
    (told,) = found["warned"]
    assert "so what idled has left" in told


@pytest.mark.timeout(0)
def test_memory_that_others_took_is_said_with_the_budget_that_would_do(rig: Path, small_disk: Path) -> None:
    # when all that is free is taken, and nothing may leave
    found = outcome(rig, small_disk, NOTHING_LEAVES)
    # then
    assert found["steps"] == 0
    assert re.fullmatch(
        r"Infeasible: device cuda:0: given a budget of 1\.00 GiB, of which the run holds [\d.]+ MiB\.\n"
        r"It asked for [\d.]+ MiB more, which are not there: "
        r"others took 39\.[\d]+ GiB of the device since the run began\.\n"
        r"End what else runs there \(nvidia-smi\), or start again with a budget of [\d.]+ MiB or less\.",
        found["error"],
    )
    assert found["cause"].startswith("OutOfMemoryError: CUDA out of memory.")


@pytest.mark.timeout(0)
def test_host_memory_that_is_not_page_locked_any_more_is_said_once(rig: Path, small_disk: Path) -> None:
    (told,) = outcome(rig, small_disk, "page-locked memory refused in the middle")["warned"]
    assert "are not page-locked (the driver refuses)" in told


@pytest.mark.timeout(0)
def test_a_disk_below_the_host_that_fills_up_is_named(rig: Path, small_disk: Path) -> None:
    found = outcome(rig, small_disk, FULL)
    assert found["error"].startswith("TierFull: ")
    assert "disk tier: no room for" in found["error"]
    assert str(small_disk) in found["error"]
    assert found["on_disk"] == []
