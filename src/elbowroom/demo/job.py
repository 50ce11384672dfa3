"""The demo's training: MONAI's 3D U-Net on the whole volume of the functional brain MRI that ships with nibabel.

The task is denoising: the network sees a volume with Gaussian noise and learns the volume without it. The loss is the
mean squared error. Steps alternate between the two time points of the recording. The slices, 2.2 mm thick, are
interpolated to half of that, about the width of a voxel. All convolutions of the first level run at full resolution,
as in a 3D U-Net without patches. Their saved activations are what does not fit.

Shape letters: N samples, C channels, X Y Z voxels.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from monai.networks.nets.unet import UNet
from nibabel.nifti1 import Nifti1Image
from torch import nn

from elbowroom.demo.digests import sha256_of

NOISE = 0.5
"""Standard deviation of the noise, in standard deviations of the volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training that is about to start."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clean_NCXYZ: torch.Tensor
    noisy_NCXYZ: torch.Tensor


def build(seed: int, shape_XYZ: tuple[int, int, int]) -> Job:
    """Build model, optimizer and data; equal seeds give equal ones.

    Args:
        seed: seed of weights and noise.
        shape_XYZ: voxels to which the volume is interpolated; the recording has 128 x 96 x 24.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    clean = volumes(shape_XYZ)
    model = UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=1,
        channels=(16, 32, 64, 128),
        strides=(1, 2, 2),
        num_res_units=3,
    )
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        clean_NCXYZ=clean,
        noisy_NCXYZ=clean + NOISE * torch.randn_like(clean),
    )


def volumes(shape_XYZ: tuple[int, int, int]) -> torch.Tensor:
    """Return the two time points of the recording as samples, with mean 0 and standard deviation 1."""
    path = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
    recorded_XYZN = Nifti1Image.from_filename(path).get_fdata(dtype=np.float32)
    samples_NCXYZ = torch.from_numpy(np.ascontiguousarray(recorded_XYZN.transpose(3, 0, 1, 2)))[:, None]
    resampled = nn.functional.interpolate(samples_NCXYZ, size=shape_XYZ, mode="trilinear")
    return (resampled - resampled.mean()) / resampled.std()


def train(job: Job, steps: int, first: int = 0) -> Iterator[tuple[float, int]]:
    """Run an ordinary training loop; yield each step's loss and duration in nanoseconds."""
    for index in range(first, first + steps):
        sample = index % len(job.clean_NCXYZ)
        start_ns = time.perf_counter_ns()
        job.optimizer.zero_grad()
        restored = job.model(job.noisy_NCXYZ[sample : sample + 1])
        loss = nn.functional.mse_loss(restored, job.clean_NCXYZ[sample : sample + 1])
        loss.backward()
        job.optimizer.step()
        del restored
        yield loss.item(), time.perf_counter_ns() - start_ns


def weights_sha256(job: Job) -> str:
    """Return a digest of the weights, which differs if a bit does."""
    return sha256_of((name, tensor.contiguous()) for name, tensor in job.model.state_dict().items())


def live_bytes(job: Job) -> int:
    """Count the bytes of storages that outlive a step: data, weights, gradients and optimizer state."""
    tensors: list[Any] = [job.clean_NCXYZ, job.noisy_NCXYZ, *job.model.buffers()]
    for parameter in job.model.parameters():
        tensors += [parameter, parameter.grad, *job.optimizer.state.get(parameter, {}).values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if torch.is_tensor(t)}
    return sum(storages.values())


def peak_allocated_bytes(job: Job, first: int) -> int:
    """Measure the allocated peak of one more step with torch's profiler, which counts allocations while it runs."""
    job.optimizer.zero_grad()
    before = live_bytes(job)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in train(job, 1, first):
            pass
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    return before + max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]")
