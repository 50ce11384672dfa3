"""A training script that knows nothing of elbowroom: a small 3D U-Net learns to fill in spheres.

    python examples/plain_train.py
    elbowroom run --budget 400MiB examples/plain_train.py

Both print the same losses.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


def conv_block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels_in, channels_out, 3, padding=1),
        nn.InstanceNorm3d(channels_out),
        nn.ReLU(),
        nn.Conv3d(channels_out, channels_out, 3, padding=1),
        nn.InstanceNorm3d(channels_out),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = conv_block(1, width)
        self.down = nn.Conv3d(width, 2 * width, 2, stride=2)
        self.bottom = conv_block(2 * width, 2 * width)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.decode = conv_block(2 * width, width)
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, volume: Tensor) -> Tensor:
        skip = self.encode(volume)
        low = self.bottom(self.down(skip))
        return self.head(self.decode(torch.cat((skip, self.up(low)), dim=1)))


def spheres(side: int) -> tuple[Tensor, Tensor]:
    """A noisy volume with one ball in it, and the ball as a mask."""
    axis = torch.linspace(-1, 1, side)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
    center = torch.rand(3, 1, 1, 1) - 0.5
    mask = ((grid - center).norm(dim=0) < 0.4).float()[None, None]
    return mask + 0.5 * torch.randn_like(mask), mask


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small 3D U-Net.")
    parser.add_argument("--side", type=int, default=80, help="voxels along each side of the volume")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = UNet(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(arguments.steps):
        volume, mask = spheres(arguments.side)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(volume), mask)
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
