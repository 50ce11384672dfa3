"""A narrow network of 300 layers: 149 residual blocks of two 3x3 convolutions, whose storages are 2 MiB each.

Many storages of one size show what each of them costs, where ResNet-50 has few large ones. Data are random numbers.
Shapes: B batch, C channels, H W the image's sides.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, training_step

DESCRIPTION = "300 layers (149 blocks of two 3x3 convolutions of 16 channels), SGD, 32 random images of 32x32"
BLOCKS = 149
CHANNELS = 16
BATCH = 32
SIDE = 32
CLASSES = 10


class Block(nn.Module):
    """Two convolutions with batch norm beside a shortcut: [B, C, H, W] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = (nn.BatchNorm2d(CHANNELS) for _ in range(2))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.first_norm(self.first(x_BCHW)), inplace=True)
        return functional.relu(self.second_norm(self.second(y_BCHW)) + x_BCHW, inplace=True)


def build(seed: int, checkpointed: bool = False) -> Job:
    """The network, its optimizer and two random batches, all from `seed`."""
    torch.manual_seed(seed)
    batches = tuple((torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))) for _ in range(2))
    stem = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS))
    blocks = tuple(Block() for _ in range(BLOCKS))
    head = nn.Linear(CHANNELS, CLASSES)
    model = nn.Sequential(stem, *blocks, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss_of(batch: Batch) -> Tensor:
        images, labels = batch
        y_BCHW = functional.relu(stem(images), inplace=True)
        for block in blocks:
            y_BCHW = apply_block(block, y_BCHW, checkpointed=checkpointed)
        return functional.cross_entropy(head(y_BCHW.mean(dim=(2, 3))), labels)

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=blocks)
