"""The training of `demo --weights`: a language model reads Python's own sources byte by byte.

The text is the modules of the standard library, one after the other. The model guesses each next byte, and the loss is
the cross entropy in nats. Few samples meet many weights, so nearly all memory is weights, gradients and the two
moments of AdamW. These are what does not fit.

Shape letters: N samples, T bytes of a sample, D width, H heads, E width of a head.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from elbowroom.demo.digests import sha256_of

SAMPLES = 4
LENGTH = 64
HEAD_WIDTH = 64
BYTE_VALUES = 256
WORDS_PER_PARAMETER = 4
"""A parameter, its gradient, and two moments."""


class ByteBlock(nn.Module):
    """Causal attention and an MLP, each with a norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_NTD: torch.Tensor) -> torch.Tensor:
        samples, length, width = x_NTD.shape
        three = self.queries_keys_values(self.norm_attention(x_NTD)).chunk(3, dim=-1)
        q_NHTE, k_NHTE, v_NHTE = (each.view(samples, length, self.heads, HEAD_WIDTH).transpose(1, 2) for each in three)
        y_NHTE = nn.functional.scaled_dot_product_attention(q_NHTE, k_NHTE, v_NHTE, is_causal=True)
        x_NTD = x_NTD + self.attended(y_NHTE.transpose(1, 2).reshape(samples, length, width))
        return x_NTD + self.down(nn.functional.gelu(self.up(self.norm_mlp(x_NTD))))


class ByteModel(nn.Module):
    """Decoder over bytes.

    Args:
        width: features of a byte, a multiple of `HEAD_WIDTH`.
        depth: number of blocks.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTE_VALUES, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(ByteBlock(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTE_VALUES)

    def forward(self, text_NT: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.bytes(text_NT) + self.places.weight)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsJob:
    """A training that is about to start."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    text: torch.Tensor
    seed: int


def build(seed: int, width: int, depth: int) -> WeightsJob:
    """Build model, optimizer and data; equal seeds give equal ones. Width and depth are those of `ByteModel`."""
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    text = sources()
    model = ByteModel(width, depth)
    return WeightsJob(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4), text=text, seed=seed)


def sources() -> torch.Tensor:
    """Return the modules of Python's standard library as one text of bytes."""
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in modules)), dtype=torch.uint8)


def training_bytes(width: int, depth: int) -> int:
    """Return the bytes of weights, gradients and moments of a model, which is not made for that."""
    with torch.device("meta"):
        model = ByteModel(width, depth)
    return WORDS_PER_PARAMETER * sum(each.nbytes for each in model.parameters())


def train(job: WeightsJob, steps: int) -> Iterator[tuple[float, int]]:
    """Run an ordinary training loop; yield each step's loss and duration in nanoseconds."""
    places = torch.Generator().manual_seed(job.seed)
    for _ in range(steps):
        begin_ns = time.perf_counter_ns()
        starts = torch.randint(len(job.text) - LENGTH, (SAMPLES,), generator=places).tolist()
        text_NT = torch.stack([job.text[start : start + LENGTH + 1] for start in starts]).long()
        job.optimizer.zero_grad()
        guesses = job.model(text_NT[:, :-1])
        loss = nn.functional.cross_entropy(guesses.flatten(0, 1), text_NT[:, 1:].flatten())
        loss.backward()
        job.optimizer.step()
        yield loss.item(), time.perf_counter_ns() - begin_ns


def weights_sha256(job: WeightsJob) -> str:
    """Return a digest of the weights, which differs if a bit does. Only one weight is copied at a time."""
    return sha256_of((name, parameter.detach().clone()) for name, parameter in job.model.named_parameters())
