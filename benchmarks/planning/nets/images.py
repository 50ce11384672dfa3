"""Image classifiers: residual networks (He et al. 1512.03385, 1603.05027), VGG-16 (Simonyan, Zisserman 1409.1556).

Shapes: B batch, C channels, H W the image's sides.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

EXPANSION = 4
STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
"""Bottlenecks for each of the four widths, for images of ImageNet."""

VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, each with batch norm, beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        out = EXPANSION * width
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = (
            nn.Identity()
            if channels == out and stride == 1
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.norm1(self.conv1(x_BCHW)), inplace=True)
        y_BCHW = functional.relu(self.norm2(self.conv2(y_BCHW)), inplace=True)
        return functional.relu(self.norm3(self.conv3(y_BCHW)) + self.shortcut(x_BCHW), inplace=True)


class PreActivation(nn.Module):
    """The same with norm and activation before each convolution, and nothing on the shortcut but a change of size."""

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        super().__init__()
        out = EXPANSION * width
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, width, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, out, 1, bias=False)
        same = channels == out and stride == 1
        self.shortcut = None if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.norm1(x_BCHW), inplace=True)
        kept_BCHW = x_BCHW if self.shortcut is None else self.shortcut(y_BCHW)
        y_BCHW = functional.relu(self.norm2(self.conv1(y_BCHW)), inplace=True)
        y_BCHW = functional.relu(self.norm3(self.conv2(y_BCHW)), inplace=True)
        return kept_BCHW + self.conv3(y_BCHW)


class ResNet(nn.Module):
    """ResNet-50, -101, -152 as of 2015; ResNet-200 with pre-activation, as of 2016. Images to scores of classes."""

    def __init__(self, depth: int = 50, classes: int = 1000) -> None:
        super().__init__()
        block = PreActivation if depth == 200 else Bottleneck
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.stages = nn.ModuleList()
        channels = 64
        for stage, count in enumerate(STAGES[depth]):
            width, blocks = 64 << stage, list[nn.Module]()
            for i in range(count):
                blocks.append(block(channels, width, 2 if stage and not i else 1))
                channels = EXPANSION * width
            self.stages.append(nn.Sequential(*blocks))
        self.last = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True)) if depth == 200 else nn.Identity()
        self.head = nn.Linear(channels, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.norm(self.conv(x_BCHW)), inplace=True)
        y_BCHW = functional.max_pool2d(y_BCHW, 3, 2, 1)
        for stage in self.stages:
            y_BCHW = stage(y_BCHW)
        return self.head(self.last(y_BCHW).mean((2, 3)))


class DeepResNet(nn.Module):
    """9 n + 2 layers with pre-activation for images of CIFAR (1603.05027): 1001 has n = 111, 2000 has n = 222."""

    def __init__(self, depth: int = 1001, classes: int = 10) -> None:
        super().__init__()
        count, rest = divmod(depth - 2, 9)
        if rest:
            raise ValueError(f"depth: given {depth}; allowed is 9 n + 2, such as 164, 1001 or 2000")
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.stages = nn.ModuleList()
        channels = 16
        for stage in range(3):
            width, blocks = 16 << stage, list[nn.Module]()
            for i in range(count):
                blocks.append(PreActivation(channels, width, 2 if stage and not i else 1))
                channels = EXPANSION * width
            self.stages.append(nn.Sequential(*blocks))
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = self.conv(x_BCHW)
        for stage in self.stages:
            y_BCHW = stage(y_BCHW)
        return self.head(functional.relu(self.norm(y_BCHW), inplace=True).mean((2, 3)))


class Vgg16(nn.Module):
    """13 convolutions and three linear layers; images of 224 x 224 unless told otherwise."""

    def __init__(self, resolution: int = 224, classes: int = 1000) -> None:
        super().__init__()
        layers, channels = list[nn.Module](), 3
        for width, count in VGG16:
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        hidden = 512 * (resolution // 32) ** 2
        self.head = nn.Sequential(
            nn.Linear(hidden, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.head(self.features(x_BCHW).flatten(1))
