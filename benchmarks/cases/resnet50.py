"""A CNN of ResNet-50's shape: bottleneck blocks 3-4-6-3 (He et al. 2015), with the stride on the 3x3 convolution.

Images and labels are random numbers: a step costs the same whatever the picture shows.
Shapes: B batch, C channels, H W the image's sides.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, training_step

DESCRIPTION = "ResNet-50 (bottlenecks 3-4-6-3), SGD with momentum, 8 random images of 224x224, 1000 classes"
BATCH = 8
SIDE = 224
CLASSES = 1000
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


def conv_norm(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the image's sides but for its stride, and batch norm."""
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut: [B, in, H, W] to [B, 4 width, H / stride, W / stride]."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = EXPANSION * width
        self.reduce = conv_norm(channels_in, width, kernel=1)
        self.filter = conv_norm(width, width, kernel=3, stride=stride)
        self.expand = conv_norm(width, channels_out, kernel=1)
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(channels_in, channels_out, kernel=1, stride=stride)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.reduce(x_BCHW), inplace=True)
        y_BCHW = functional.relu(self.filter(y_BCHW), inplace=True)
        return functional.relu(self.expand(y_BCHW) + self.shortcut(x_BCHW), inplace=True)


class ResNet50(nn.Module):
    """Images [B, 3, H, W] to class scores [B, CLASSES]."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = conv_norm(3, 64, kernel=7, stride=2)
        self.body = nn.ModuleList()
        channels = 64
        for stage, (width, depth) in enumerate(STAGES):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                self.body.append(Bottleneck(channels, width, stride))
                channels = EXPANSION * width
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.stem(x_BCHW), inplace=True)
        y_BCHW = functional.max_pool2d(y_BCHW, kernel_size=3, stride=2, padding=1)
        for block in self.body:
            y_BCHW = apply_block(block, y_BCHW, checkpointed=self.checkpointed)
        return self.head(y_BCHW.mean(dim=(2, 3)))


def build(seed: int, checkpointed: bool = False) -> Job:
    """A ResNet-50, its optimizer and two random batches, all from `seed`."""
    torch.manual_seed(seed)
    batches = tuple((torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))) for _ in range(2))
    model = ResNet50(checkpointed=checkpointed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss_of(batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=tuple(model.body))
