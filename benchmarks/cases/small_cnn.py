"""A small convolutional network whose step takes some tens of milliseconds, with storages above and below 1 MiB."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, training_step

DESCRIPTION = "five convolutions with batch norm on 32 random images of 32x32, Adam"
CHANNELS = (3, 32, 32, 64, 64, 128)
BATCH = 32
SIDE = 32
CLASSES = 10


def build(seed: int, checkpointed: bool = False) -> Job:
    """The network, its optimizer and one random batch, all from `seed`."""
    torch.manual_seed(seed)
    batches = ((torch.randn(BATCH, CHANNELS[0], SIDE, SIDE), torch.randint(CLASSES, (BATCH,))),)
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=1 + i % 2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        for i, (a, b) in enumerate(itertools.pairwise(CHANNELS))
    ]
    head = nn.Linear(CHANNELS[-1], CLASSES)
    model = nn.Sequential(*layers, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(batch: Batch) -> Tensor:
        values, labels = batch
        for layer in layers:
            values = apply_block(layer, values, checkpointed=checkpointed)
        return functional.cross_entropy(head(values.mean(dim=(2, 3))), labels)

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=tuple(layers))
