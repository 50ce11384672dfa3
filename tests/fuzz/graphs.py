"""Modules made at random: a graph of a few layers and operations."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SIZE = 48
ONE: list[Callable[[Tensor], Tensor]] = [
    torch.tanh,
    torch.sigmoid,
    F.gelu,
    F.silu,
    lambda x: F.relu(x, inplace=False),
    lambda x: F.leaky_relu_(x * 1, 0.2),
    lambda x: x.clone().mul_(0.5).add_(x),
    lambda x: F.dropout(x, 0.2),
    lambda x: x.t().contiguous().t(),
    lambda x: x.t().sin().t(),
    lambda x: x.softmax(1) * x,
    lambda x: F.layer_norm(x, x.shape[1:]),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: x / (1 + x.std()),
    lambda x: x.roll(3, 1).exp().clamp(max=2),
    lambda x: torch.where(x > 0, x, 0.1 * x.square()),
    lambda x: torch.cat([x[:, : x.shape[1] // 2].cos(), x[:, x.shape[1] // 2 :]], 1),
    lambda x: x.view(-1, 2, x.shape[1] // 2).flip(1).reshape(x.shape) * x.detach(),
    lambda x: x.expand(2, -1, -1).sin().sum(0) * 0.5,
    lambda x: x.bfloat16().tanh().float(),
    lambda x: torch.complex(x.float(), x.roll(1, 0).float()).exp().abs().log1p(),
    lambda x: x.sort(1)[0],
    lambda x: x.unfold(1, 4, 4).amax(2).repeat(1, 4),
    lambda x: x.masked_fill(x > 1, 0.5),
    lambda x: checkpoint(lambda y: torch.tanh(y) * y, x, use_reentrant=False),
]
TWO: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    lambda a, b: a @ (b.t() @ a).tanh() / a.shape[1],
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.addcmul(a, a, b, value=0.5),
    lambda a, b: torch.lerp(a, b.to(a.dtype), 0.3),
    lambda a, b: a * b.detach() + b,
]


class Made(nn.Module):
    """A graph of a few layers and operations; later ones may read any earlier result."""

    def __init__(self, seed: int, size: int = SIZE) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(4))
        self.norm = nn.BatchNorm1d(size)
        self.moves: list[Callable[[list[Tensor]], Tensor]] = [self._move(dice) for _ in range(14)]

    def _move(self, dice: random.Random) -> Callable[[list[Tensor]], Tensor]:
        back, other, kind = dice.randint(1, 4), dice.randint(1, 6), dice.random()
        if kind < 0.3:
            layer = dice.choice(self.layers)
            return lambda made: layer(made[-min(back, len(made))])
        if kind < 0.4:
            return lambda made: self.norm(made[-1])
        if kind < 0.75:
            one = dice.choice(ONE)
            return lambda made: one(made[-min(back, len(made))])
        two = dice.choice(TWO)
        return lambda made: two(made[-1], made[-min(other, len(made))])

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for move in self.moves:
            made.append(torch.nan_to_num(move(made)).clamp(-3, 3))
        return torch.stack(made[-3:]).sum(0)
