"""A language model with tensor parallel layers, for the virtual device and for the rig: python parallel.py autocast,...

The process group is one of torch's own for tests, whose other processes are not there.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, ROWS, BATCH, WORDS = 256, 4, 256, 4, 4000


class Attention(nn.Module):
    """Heads that DTensors say; `drop` is the rate of dropout."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        heads = (each(x).view(BATCH, ROWS, -1, WIDTH // HEADS).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        made = F.scaled_dot_product_attention(*heads, dropout_p=self.drop, is_causal=True)
        return self.wo(made.transpose(1, 2).reshape(BATCH, ROWS, -1))


class Forward(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.dropout(F.silu(self.w1(x)) * self.w3(x), self.drop))


class Block(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(drop), Forward(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Model(nn.Module):
    def __init__(self, how: Collection[str]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(0.1 if "dropout" in how else 0.0) for _ in range(2))
        self.norm, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.again = "checkpoint" in how

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.out(self.norm(x))


def parallel(model: Model, mesh: DeviceMesh) -> None:
    """Weights by heads and columns, what lies between by rows of the text, the loss by words."""
    ends: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    gathers = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    wide = ColwiseParallel(use_local_output=False)
    inside: dict[str, Any] = {
        **dict.fromkeys(("first", "second"), SequenceParallel()),
        **dict.fromkeys(("attention", "feed"), gathers),
        **dict.fromkeys(("attention.wq", "attention.wk", "attention.wv", "feed.w1", "feed.w3"), wide),
        **dict.fromkeys(("attention.wo", "feed.w2"), RowwiseParallel(output_layouts=Shard(1))),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, inside)


def trained(size: int, how: Collection[str]) -> list[tuple[int, int]]:
    """Peaks by the end of each step, allocated and reserved, in a group of so many processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    model: Any = Model(how).cuda()
    parallel(model, init_device_mesh("cuda", (size,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach="foreach" in how)
    model = torch.compile(model, backend="eager") if "compile" in how else model
    found = [_step(model, optimizer, how) for _ in range(3)]
    dist.destroy_process_group()
    return found


def _step(model: Any, optimizer: torch.optim.Optimizer, how: Collection[str]) -> tuple[int, int]:
    given, wanted = (torch.randint(0, WORDS, (BATCH, ROWS), device="cuda") for _ in range(2))
    with torch.autocast("cuda", torch.bfloat16) if "autocast" in how else nullcontext():
        made = model(given)
        with loss_parallel():
            F.cross_entropy(made.flatten(0, 1), wanted.flatten(0, 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


if __name__ == "__main__":
    print("@@", trained(int(os.environ["PROCESSES"]), os.environ["HOW"].split(",")))
