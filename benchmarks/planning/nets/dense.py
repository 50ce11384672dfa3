"""Models that label every point: 3D U-Net (Cicek et al. 1606.06650) and DeepLabV3 (Chen et al. 1706.05587).

Shapes: B batch, C channels, X Y Z the volume's sides, H W the image's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.planning.nets.images import EXPANSION, STAGES, Bottleneck


def _twice(channels: int, middle: int, out: int) -> nn.Sequential:
    """Two convolutions, each with batch norm and activation."""
    return nn.Sequential(
        nn.Conv3d(channels, middle, 3, padding=1, bias=False),
        nn.BatchNorm3d(middle),
        nn.ReLU(inplace=True),
        nn.Conv3d(middle, out, 3, padding=1, bias=False),
        nn.BatchNorm3d(out),
        nn.ReLU(inplace=True),
    )


class UNet3d(nn.Module):
    """Four levels of `base` to 8 `base` channels in, twice as many out, with shortcuts; padded, so that sides stay."""

    def __init__(self, channels: int = 4, classes: int = 4, base: int = 32) -> None:
        super().__init__()
        widths = [base << level for level in range(4)]
        self.down = nn.ModuleList()
        for width in widths:
            self.down.append(_twice(channels, width, 2 * width))
            channels = 2 * width
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose3d(channels, channels, 2, 2))
            self.merge.append(_twice(channels + 2 * width, 2 * width, 2 * width))
            channels = 2 * width
        self.head = nn.Conv3d(channels, classes, 1)

    def forward(self, x_BCXYZ: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, block in enumerate(self.down):
            x_BCXYZ = block(functional.max_pool3d(x_BCXYZ, 2) if level else x_BCXYZ)
            kept.append(x_BCXYZ)
        kept.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x_BCXYZ = merge(torch.cat([kept.pop(), up(x_BCXYZ)], 1))
        return self.head(x_BCXYZ)


def _conv(channels: int, out: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(channels, out, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class DeepLabV3(nn.Module):
    """ResNet-50 whose last stage is dilated (output stride 16), and pyramid pooling with rates 6, 12 and 18."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks, channels = list[nn.Module](), 64
        for stage, count in enumerate(STAGES[50]):
            width, dilated = 64 << stage, stage == 3
            for i in range(count):
                stride = 2 if stage in (1, 2) and not i else 1
                blocks.append(Bottleneck(channels, width, stride, 2 if dilated else 1))
                channels = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.pyramid = nn.ModuleList(
            [_conv(channels, 256, 1), *(_conv(channels, 256, 3, rate) for rate in (6, 12, 18))]
        )
        self.pooled = nn.Sequential(nn.Conv2d(channels, 256, 1, bias=False), nn.ReLU(inplace=True))
        self.merge = nn.Sequential(_conv(5 * 256, 256, 1), nn.Dropout(0.5), _conv(256, 256, 3))
        self.head = nn.Conv2d(256, classes, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        sides = x_BCHW.shape[2:]
        y_BCHW = self.blocks(self.stem(x_BCHW))
        whole = self.pooled(y_BCHW.mean((2, 3), keepdim=True)).expand(-1, -1, *y_BCHW.shape[2:])
        y_BCHW = self.merge(torch.cat([*(branch(y_BCHW) for branch in self.pyramid), whole], 1))
        return functional.interpolate(self.head(y_BCHW), size=sides, mode="bilinear", align_corners=False)
