"""Tensor parallel trainings beside the CUDA build of PyTorch on the rig: the same peaks in each step."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from elbowroom.capture.virtual import VirtualDevice
from tests.fakecuda import parallel
from tests.fakecuda.rig import machine_of, rig_folder

RIG = machine_of(8 * 2**30, 90, 132)


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("processes", "how"), [(1, ""), (2, "foreach"), (2, "dropout"), (2, "checkpoint"), (1, "compile")]
)
def test_a_tensor_parallel_training_peaks_as_in_the_cuda_build(processes: int, how: str) -> None:
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")

    with VirtualDevice(RIG, None):
        found = parallel.trained(processes, how.split(","))

    assert found == _on_rig(rig, processes, how)


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_parallel_training_under_autocast_peaks_nearly_as_in_the_cuda_build() -> None:
    """Autocast frees its 16-bit weights in the order of a hash table there."""
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")

    with VirtualDevice(RIG, None):
        found = parallel.trained(2, ["autocast"])

    for ours, theirs in zip(found, _on_rig(rig, 2, "autocast"), strict=True):
        assert ours == pytest.approx(theirs, rel=0.01)


def _on_rig(rig: Path, processes: int, how: str) -> list[tuple[int, int]]:
    environment = {
        **os.environ,
        "FAKECUDA_CAPACITY": str(8 * 2**30),
        "FAKECUDA_CC": str(RIG.compute_capability),
        "FAKECUDA_SMS": str(RIG.multiprocessors),
        "FAKECUDA_BACKING": "0",
        "PROCESSES": str(processes),
        "HOW": how,
    }
    command = [str(rig / "fake_torch.sh"), parallel.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ast.literal_eval(done.stdout.rpartition("@@")[2].strip())
