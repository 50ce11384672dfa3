"""A 3D U-Net that denoises a brain MRI.

Shapes: B batch, C channels, D H W the volume's sides.
"""

from __future__ import annotations

import itertools
from importlib.resources import files

import nibabel
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, training_step

DESCRIPTION = "3D U-Net, 16-32-64-128 channels, three convolutions a block, Adam, one 80x64x64 MRI volume, denoising"
SIDES = (80, 64, 64)
CHANNELS = (16, 32, 64, 128)
CONVOLUTIONS = 3
NOISE = 0.2


class ConvBlock(nn.Module):
    """CONVOLUTIONS times convolution, instance norm and leaky ReLU: [B, in, D, H, W] to [B, out, D, H, W]."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for source in (channels_in, *[channels_out] * (CONVOLUTIONS - 1)):
            layers.append(nn.Conv3d(source, channels_out, kernel_size=3, padding=1))
            layers.append(nn.InstanceNorm3d(channels_out, affine=True))
            layers.append(nn.LeakyReLU(0.01))
        self.layers = nn.Sequential(*layers)

    def forward(self, x_BCDHW: Tensor) -> Tensor:
        return self.layers(x_BCDHW)


class UNet3d(nn.Module):
    """Contracting and expanding path with skip connections, which are added; adds its output to its input."""

    def __init__(self, channels: tuple[int, ...], *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        pairs = tuple(itertools.pairwise(channels))
        self.stem = ConvBlock(1, channels[0])
        self.down = nn.ModuleList(nn.Conv3d(a, b, kernel_size=2, stride=2) for a, b in pairs)
        self.encode = nn.ModuleList(ConvBlock(b, b) for _, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, kernel_size=2, stride=2) for a, b in reversed(pairs))
        self.decode = nn.ModuleList(ConvBlock(a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv3d(channels[0], 1, kernel_size=1)

    def blocks(self) -> tuple[nn.Module, ...]:
        return (self.stem, *self.encode, *self.decode)

    def forward(self, x_BCDHW: Tensor) -> Tensor:
        skips = [apply_block(self.stem, x_BCDHW, checkpointed=self.checkpointed)]
        for down, encode in zip(self.down, self.encode, strict=True):
            skips.append(apply_block(encode, down(skips[-1]), checkpointed=self.checkpointed))
        y_BCDHW = skips.pop()
        for up, decode in zip(self.up, self.decode, strict=True):
            y_BCDHW = apply_block(decode, skips.pop() + up(y_BCDHW), checkpointed=self.checkpointed)
        return x_BCDHW + self.head(y_BCDHW)


def read_volumes(sides: tuple[int, int, int]) -> Tensor:
    """The two brain volumes that nibabel ships, resampled to [2, 1, *sides], each scaled to 0..1."""
    path = files("nibabel") / "tests" / "data" / "example4d.nii.gz"
    image = nibabel.load(str(path))
    volumes_DHWB = torch.from_numpy(image.get_fdata(dtype="float32"))  # type: ignore[attr-defined]
    volumes_BCDHW = volumes_DHWB.permute(3, 0, 1, 2).unsqueeze(1)
    resampled_BCDHW = functional.interpolate(volumes_BCDHW, size=sides, mode="trilinear", align_corners=False)
    low = resampled_BCDHW.amin(dim=(2, 3, 4), keepdim=True)
    high = resampled_BCDHW.amax(dim=(2, 3, 4), keepdim=True)
    return (resampled_BCDHW - low) / (high - low)


def build(seed: int, checkpointed: bool = False) -> Job:
    """A U-Net, its optimizer and two noisy volumes with their clean originals, all from `seed`."""
    torch.manual_seed(seed)
    clean_BCDHW = read_volumes(SIDES)
    noisy_BCDHW = clean_BCDHW + NOISE * torch.randn_like(clean_BCDHW)
    batches = tuple((noisy_BCDHW[i : i + 1].clone(), clean_BCDHW[i : i + 1].clone()) for i in range(2))
    model = UNet3d(CHANNELS, checkpointed=checkpointed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(batch: Batch) -> Tensor:
        noisy, clean = batch
        return functional.mse_loss(model(noisy), clean)

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=model.blocks())
