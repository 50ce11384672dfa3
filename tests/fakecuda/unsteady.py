"""Runs inside the rig under `elbowroom run`: trainings whose steps come to hold more than the first one.

python unsteady.py CASE. Prints "@@ done" at the end.
"""

from __future__ import annotations

import copy
import io
import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 12


def deep(width: int, depth: int) -> list[nn.Module]:
    return [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]


def growing_states() -> Iterator[None]:
    """L-BFGS keeps directions of its last steps: with each step more, up to its history's size."""
    net = nn.Sequential(*deep(256, 20)).cuda()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=6, history_size=5)
    x, y = (torch.randn(4096, 256).cuda() for _ in range(2))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
        yield


def episodes() -> Iterator[None]:
    """Episodes of any length are played without gradients, and learnt from in two steps each."""
    net = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), *deep(1024, 6), nn.Linear(1024, 8)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    for length in (200, 1900, 60, 1400, 1980, 700, 1860, 90, 1750, 1300, 1900, 400):
        seen = []
        with torch.no_grad():
            now = torch.randn(1, 64).cuda()
            for _ in range(length // 20):
                net(now)
                seen.append(now)
                now = torch.roll(now, 1, 1)
        for _ in range(2):
            loss = functional.log_softmax(net(torch.cat(seen).repeat(20, 1)), -1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield


def graphs() -> Iterator[None]:
    """Mini-batches of graphs: each has other numbers of nodes and edges."""
    sizes = (128, *[256] * 8)
    layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)]).cuda()
    head = nn.Linear(256, 10).cuda()
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], 1e-3)
    for _ in range(STEPS):
        nodes = random.randrange(5000, 20000)
        x = torch.randn(nodes, 128).cuda()
        source, target = (torch.randint(0, nodes, (nodes * 6,)).cuda() for _ in range(2))
        for layer in layers:
            sent = functional.relu(layer(x))
            x = torch.zeros_like(sent).index_add(0, target, sent[source]) / 6 + sent
        loss = functional.cross_entropy(head(x), torch.zeros(nodes, dtype=torch.long).cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def between(does: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Callable[[], Iterator[None]]:
    """A language model, with something else between two of its steps."""

    def run() -> Iterator[None]:
        blocks = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0) for _ in range(6)]
        net = nn.Sequential(nn.Embedding(8000, 512), *blocks, nn.Linear(512, 8000)).cuda()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
        words = torch.randint(0, 8000, (8, 256)).cuda()
        for number in range(STEPS):
            functional.cross_entropy(net(words).flatten(0, 1), words.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 5:
                does(net, optimizer)
            yield

    return run


def evaluation(net: nn.Module, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        net(torch.zeros(24, 256, dtype=torch.long).cuda())


def second_model(net: nn.Module, _: torch.optim.Optimizer) -> None:
    evaluation(copy.deepcopy(net), _)


def checkpoint(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    written = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, written)
    written.seek(0)
    found = torch.load(written, map_location="cpu")
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])


CASES: dict[str, Callable[[], Iterator[None]]] = {
    **{each.__name__: each for each in (growing_states, episodes, graphs)},
    **{each.__name__: between(each) for each in (evaluation, second_model, checkpoint)},
}

if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    for _ in CASES[sys.argv[1]]():
        pass
    torch.cuda.synchronize()
    print("@@ done")
