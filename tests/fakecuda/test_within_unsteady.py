"""Trainings whose steps come to hold more than the first one, on the CUDA build: the device's capacity is the limit.

Trained plain, each needs more than that.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.on_rig import environment_of
from tests.fakecuda import unsteady
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20
CAPACITIES = {
    "growing_states": 180,
    "episodes": 190,
    "graphs": 440,
    "evaluation": 500,
    "second_model": 500,
    "checkpoint": 500,
}


def run(rig: Path, capacity_mib: int, case: str, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"FAKECUDA_CAPACITY": str(capacity_mib * MIB), "FAKECUDA_CC": "90", "FAKECUDA_COPIES": str(1 << 16)}
    command = [str(rig / "fake_torch.sh"), *words, unsteady.__file__, case]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment_of(variables=variables))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", unsteady.CASES)
def test_a_training_whose_steps_come_to_hold_more_stays_below_the_capacity(rig: Path, case: str) -> None:
    plain = run(rig, CAPACITIES[case], case)
    assert "OutOfMemoryError" in plain.stderr

    within = run(rig, CAPACITIES[case], case, "-m", "elbowroom", "run")

    assert (within.returncode, "@@ done" in within.stdout) == (0, True), within.stderr[-2000:]
