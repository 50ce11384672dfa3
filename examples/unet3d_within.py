"""Denoise a brain MRI with MONAI's 3D U-Net inside a memory budget: the two marked lines are all that elbowroom needs.

pip install 'elbowroom[demo]'
python examples/unet3d_within.py
"""

from __future__ import annotations

from importlib.resources import files

import nibabel
import torch
from monai.networks.nets import UNet
from torch import Tensor, nn

import elbowroom  # 1

BUDGET = "130MiB"
STEPS = 6


def read_brain(sides: tuple[int, int, int]) -> Tensor:
    """The first volume of the MRI that nibabel ships, resampled to [1, 1, *sides] and scaled to mean 0, variance 1."""
    image = nibabel.load(str(files("nibabel") / "tests" / "data" / "example4d.nii.gz"))
    volume = torch.from_numpy(image.get_fdata(dtype="float32")[..., 0])[None, None]
    volume = nn.functional.interpolate(volume, size=sides, mode="trilinear", align_corners=False)
    return (volume - volume.mean()) / volume.std()


def train() -> None:
    torch.manual_seed(0)
    clean = read_brain((128, 96, 64))
    model = UNet(3, 1, 1, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        noisy = clean + 0.3 * torch.randn_like(clean)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6f}")


if __name__ == "__main__":
    with elbowroom.within(BUDGET) as room:  # 2
        train()
    print(room.summary())
