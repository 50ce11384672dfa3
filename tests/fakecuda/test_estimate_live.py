"""The estimate of a script beside the CUDA build of PyTorch running it on the rig: peaks, and the least capacity."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.answers.estimate import estimate
from elbowroom.capture.script import capture_script
from elbowroom.machine import Machine
from tests.fakecuda.rig import rig_folder

SCRIPT = Path(__file__).parents[2] / "examples" / "gpt_train.py"
RTX4090 = replace(Machine.of("rtx4090"), outside_bytes=0, outside_range_bytes=(0, 0))  # the rig has no context
SEGMENT_BYTES = 20 * 2**20

# Runs a script as __main__, then says its peaks; exits with 3 where memory ran out.
AROUND = """
import runpy, sys, torch
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except torch.OutOfMemoryError:
    sys.exit(3)
print("@@", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.fixture
def rig() -> Path:
    folder = rig_folder()
    if folder is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "gpt_train.py"
    path.write_text(SCRIPT.read_text().replace("\nsteps = 5\n", "\nsteps = 3\n"))
    return path


def on_the_rig(rig: Path, script: Path, capacity_bytes: int) -> tuple[int, int] | None:
    """Allocated and reserved peak; None where memory ran out."""
    around = script.with_name("around.py")
    around.write_text(AROUND)
    environment = {
        **os.environ,
        "FAKECUDA_CAPACITY": str(capacity_bytes),
        "FAKECUDA_CC": str(RTX4090.compute_capability),
        "FAKECUDA_SMS": str(RTX4090.multiprocessors),
        "FAKECUDA_BACKING": "0",
    }
    command = [str(rig / "fake_torch.sh"), str(around), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 3:
        return None
    assert done.returncode == 0, done.stderr
    allocated, reserved = done.stdout.rpartition("@@")[2].split()
    return int(allocated), int(reserved)


@pytest.mark.timeout(0)
def test_the_estimate_of_a_gpt_is_what_the_cuda_build_needs(rig: Path, script: Path) -> None:
    answer = estimate(capture_script(script, machine=RTX4090), RTX4090)

    with_room = on_the_rig(rig, script, RTX4090.tiers[0].capacity_bytes)

    assert with_room is not None
    assert (answer.peak_allocated_bytes, answer.peak_reserved_bytes) == with_room
    # and it runs in what is said to be needed, and not in 2 % less
    assert on_the_rig(rig, script, answer.needed_bytes) is not None
    assert on_the_rig(rig, script, (answer.needed_bytes - SEGMENT_BYTES) * 98 // 100) is None
