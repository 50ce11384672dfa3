"""A multi-layer perceptron whose step takes about a millisecond: where an overhead per op would show most."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, training_step

DESCRIPTION = "perceptron 64-256-256-256-10 with ReLU, SGD, 64 random rows"
WIDTHS = (64, 256, 256, 256, 10)
BATCH = 64


def build(seed: int, checkpointed: bool = False) -> Job:
    """The perceptron, its optimizer and one random batch, all from `seed`."""
    torch.manual_seed(seed)
    batches = ((torch.randn(BATCH, WIDTHS[0]), torch.randint(WIDTHS[-1], (BATCH,))),)
    layers = [nn.Sequential(nn.ReLU(), nn.Linear(a, b)) for a, b in itertools.pairwise(WIDTHS)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(batch: Batch) -> Tensor:
        values, labels = batch
        for layer in layers:
            values = apply_block(layer, values, checkpointed=checkpointed)
        return functional.cross_entropy(values, labels)

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=tuple(layers))
