"""Trainings with CUDA graphs and streams, for the virtual device and for the rig: python graphs.py captured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 512, 256
Figures = list[tuple[int, int, int]]
"""Allocated bytes, the most of them so far, and reserved bytes."""


def _now() -> tuple[int, int, int]:
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()


def _given() -> Tensor:
    return torch.randn(ROWS, WIDTH, device="cuda")


def captured() -> Figures:
    """A whole step in a graph, as torch's documentation has it."""
    net, x, y = _net(), _given(), _given()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> Tensor:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for _ in range(3):
            optimizer.zero_grad()
            step()
    torch.cuda.current_stream().wait_stream(beside)
    found = [_now()]
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(2):
        x.copy_(_given())
        graph.replay()
        found.append(_now())
    torch.cuda.empty_cache()
    del loss
    optimizer.zero_grad()
    return [*found, _now()]


def graphed() -> Figures:
    """Parts of a network as graphs."""
    first, last = _net(), _net()
    optimizer = torch.optim.AdamW([*first.parameters(), *last.parameters()])
    x, y = _given(), _given()
    make: Any = torch.cuda.make_graphed_callables
    first, last = make((first, last), ((x,), (_given().requires_grad_(),)))
    found: Figures = []
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(last(first(x)), y).backward()
        optimizer.step()
        found.append(_now())
    return found


@torch.no_grad()
def shared() -> Figures:
    """Two graphs that share a pool, and one with another."""
    first, last, x = _net(), _net(), _given()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    with torch.cuda.graph(graphs[0]):
        a = first(x)
    found = [_now()]
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
        b = last(a)
    found.append(_now())
    with torch.cuda.graph(graphs[2], pool=torch.cuda.graph_pool_handle()):
        c = last(x)
    found.append(_now())
    del b, c
    torch.cuda.empty_cache()
    return [*found, _now()]


def beside() -> Figures:
    """Half of a network on another stream; backward begins on the default one."""
    first, last = _net(), _net()
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    stream = torch.cuda.Stream()
    found: Figures = []
    for _ in range(3):
        x = first(_given())
        with torch.cuda.stream(stream):
            x = checkpoint(last, x, use_reentrant=False)
        first(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(_now())
    return found


def sharded() -> Figures:
    """FSDP's streams, in a group of one."""
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    net = nn.Sequential(*(_net() for _ in range(4)))
    for each in (*net, net):
        fully_shard(each)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    found: Figures = []
    for _ in range(3):
        net(_given()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(_now())
    dist.destroy_process_group()
    return found


CASES: dict[str, Callable[[], Figures]] = {each.__name__: each for each in (captured, graphed, shared, beside, sharded)}

if __name__ == "__main__":
    print("@@", CASES[sys.argv[1]]())
