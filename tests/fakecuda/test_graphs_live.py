"""Trainings with CUDA graphs and streams beside the CUDA build of PyTorch on the rig: the same bytes in each step."""

from __future__ import annotations

import ast
import os
import subprocess

import pytest

from elbowroom.capture.virtual import VirtualDevice
from tests.fakecuda import graphs
from tests.fakecuda.rig import machine_of, rig_folder

RIG = machine_of(8 * 2**30, 90, 132)


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", graphs.CASES)
def test_streams_and_graphs_hold_what_they_hold_in_the_cuda_build(case: str) -> None:
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")
    environment = {
        **os.environ,
        "FAKECUDA_CAPACITY": str(8 * 2**30),
        "FAKECUDA_CC": str(RIG.compute_capability),
        "FAKECUDA_SMS": str(RIG.multiprocessors),
        "FAKECUDA_BACKING": "0",
    }

    with VirtualDevice(RIG, None):
        found = graphs.CASES[case]()

    command = [str(rig / "fake_torch.sh"), graphs.__file__, case]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found == ast.literal_eval(done.stdout.rpartition("@@")[2].strip())
