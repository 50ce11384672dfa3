"""Inception-V3 (Szegedy et al. 1512.00567) without its auxiliary classifier; images of 299 x 299.

Shapes: B batch, C channels, H W the image's sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Window = int | tuple[int, int]
Layer = tuple[int, Window]


class Conv(nn.Module):
    """Convolution, batch norm, activation; the sides stay unless padding is 0."""

    def __init__(self, channels: int, out: int, kernel: Window, stride: int = 1, padded: bool = True) -> None:
        super().__init__()
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (high // 2, wide // 2) if padded else 0
        self.conv = nn.Conv2d(channels, out, (high, wide), stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return functional.relu(self.norm(self.conv(x_BCHW)), inplace=True)


def chain(channels: int, layers: Sequence[Layer], last_stride: int = 1) -> nn.Sequential:
    """Convolutions one after the other; with a stride, the last one makes the sides smaller."""
    made: list[nn.Module] = []
    for i, (out, kernel) in enumerate(layers):
        last = i == len(layers) - 1 and last_stride > 1
        made.append(Conv(channels, out, kernel, last_stride if last else 1, padded=not last))
        channels = out
    return nn.Sequential(*made)


class Mixed(nn.Module):
    """Branches side by side: chains of convolutions, and a pooling with a convolution, or alone where `pooled` is 0."""

    def __init__(self, channels: int, branches: Sequence[Sequence[Layer]], pooled: int, stride: int = 1) -> None:
        super().__init__()
        self.branches = nn.ModuleList(chain(channels, each, stride) for each in branches)
        self.pooled = Conv(channels, pooled, 1) if pooled else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.pooled is None:
            pooled = functional.max_pool2d(x_BCHW, 3, 2)
        else:
            pooled = self.pooled(functional.avg_pool2d(x_BCHW, 3, 1, 1))
        return torch.cat([*(branch(x_BCHW) for branch in self.branches), pooled], 1)


class Split(nn.Module):
    """A 1x3 and a 3x1 convolution of the same input, side by side."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.wide, self.high = Conv(channels, out, (1, 3)), Conv(channels, out, (3, 1))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return torch.cat([self.wide(x_BCHW), self.high(x_BCHW)], 1)


class Widest(nn.Module):
    """The last two blocks: 2048 channels out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = Conv(channels, 320, 1)
        self.two = nn.Sequential(Conv(channels, 384, 1), Split(384, 384))
        self.three = nn.Sequential(Conv(channels, 448, 1), Conv(448, 384, 3), Split(384, 384))
        self.pooled = Conv(channels, 192, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        pooled = self.pooled(functional.avg_pool2d(x_BCHW, 3, 1, 1))
        return torch.cat([self.one(x_BCHW), self.two(x_BCHW), self.three(x_BCHW), pooled], 1)


def _square(pooled: int, channels: int) -> Mixed:
    return Mixed(channels, [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]], pooled)


def _factored(width: int) -> Mixed:
    row, column = (1, 7), (7, 1)
    long = [(width, 1), (width, column), (width, row), (width, column), (192, row)]
    return Mixed(768, [[(192, 1)], [(width, 1), (width, row), (192, column)], long], 192)


class InceptionV3(nn.Module):
    """Images to scores of classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 32, 3, 2, padded=False),
            Conv(32, 32, 3, padded=False),
            Conv(32, 64, 3),
            nn.MaxPool2d(3, 2),
            Conv(64, 80, 1),
            Conv(80, 192, 3, padded=False),
            nn.MaxPool2d(3, 2),
        )
        smaller = [[(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)]]
        self.blocks = nn.Sequential(
            _square(32, 192),
            _square(64, 256),
            _square(64, 288),
            Mixed(288, [[(384, 3)], [(64, 1), (96, 3), (96, 3)]], 0, stride=2),
            *(_factored(width) for width in (128, 160, 160, 192)),
            Mixed(768, smaller, 0, stride=2),
            Widest(1280),
            Widest(2048),
        )
        self.dropout, self.head = nn.Dropout(), nn.Linear(2048, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.head(self.dropout(self.blocks(self.stem(x_BCHW)).mean((2, 3))))
