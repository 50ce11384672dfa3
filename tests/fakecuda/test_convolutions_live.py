"""Trials of cudnn.benchmark beside the CUDA build of PyTorch on the rig: the same peaks, with the cache emptied."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from elbowroom.answers.estimate import estimate
from elbowroom.capture.virtual import CudnnModel, PassWorkspace, VirtualDevice
from tests.fakecuda.rig import machine_of, rig_folder

CAPACITY_BYTES = 8 * 2**30
RIG = machine_of(CAPACITY_BYTES, 90, 132)

# What is cached when the second batch comes is given back by its trials: without them, more is reserved.
TRAINING = """
import torch
from torch import nn
torch.backends.cudnn.benchmark = {benchmark}
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.ConvTranspose2d(32, 32, 2, 2), nn.Conv2d(32, 8, 3)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for size in (160, 192, 192):
    x = torch.zeros(4, 3, size, size, device="cuda")
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SAYS = "print('@@', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())\n"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("workspace_bytes", [0, 30_000_000])
@pytest.mark.parametrize("benchmark", [False, True])
def test_a_training_with_trials_peaks_as_in_the_cuda_build(
    tmp_path: Path, benchmark: bool, workspace_bytes: int
) -> None:
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")
    training = TRAINING.format(benchmark=benchmark)
    model = CudnnModel(workspace=lambda _: PassWorkspace(*[workspace_bytes] * 4))

    with VirtualDevice(RIG, None, cudnn=model) as device:
        exec(training, {})
    answer = estimate(device.trace(), RIG)

    assert (answer.peak_allocated_bytes, answer.peak_reserved_bytes) == _on_rig(
        rig, tmp_path, training, workspace_bytes
    )


def _on_rig(rig: Path, folder: Path, training: str, workspace_bytes: int) -> tuple[int, int]:
    script = folder / "training.py"
    script.write_text(training + SAYS)
    environment: dict[str, Any] = {
        **os.environ,
        "FAKECUDA_CAPACITY": str(CAPACITY_BYTES),
        "FAKECUDA_CC": str(RIG.compute_capability),
        "FAKECUDA_SMS": str(RIG.multiprocessors),
        "FAKECUDA_BACKING": "0",
        "FAKECUDNN_WORKSPACE": str(workspace_bytes),
    }
    command = [str(rig / "fake_torch.sh"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    allocated, reserved = done.stdout.rpartition("@@")[2].split()
    return int(allocated), int(reserved)
