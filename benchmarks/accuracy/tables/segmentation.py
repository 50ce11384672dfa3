"""Semantic segmentation as mmsegmentation trains it: ResNet-V1c, four heads, one job of each row of its model zoo.

The parts are written again from the settings in its configurations (configs/_base_/models): what counts is which
tensors live when. Layers are named as in the papers; nothing of mmsegmentation is imported.

segmentation.csv has the column "Mem (GB)" of its model zoo (configs/{fcn,pspnet,deeplabv3,upernet}/README.md), which
docs/model_zoo.md explains: torch.cuda.max_memory_allocated, the most of four V100s, cudnn.benchmark off. Taken is that
a GB is 1024 MiB, as its logs count MiB; and a torch of 2020, whose log-softmax kept its input too.
"""

# Shapes: N images, C channels, H height, W width, K classes.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.tables.row import GIB, Row, lines

BLOCKS = {"R-18": (2, 2, 2, 2), "R-50": (3, 4, 6, 3), "R-101": (3, 4, 23, 3)}
POOLS = (1, 2, 3, 6)
BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel of that time copies gradients into buckets of this size."""


def rows(_folder: Path) -> Iterator[Row]:
    """The rows of segmentation.csv beside this module."""
    for data_set, classes, method, backbone, height, width, images, memory in lines(
        Path(__file__).with_name("segmentation.csv")
    ):
        half, plain = backbone.endswith("h"), backbone.endswith("b")
        yield Row(
            id=f"segmentation-{data_set}-{method}-{backbone}-{height}",
            family="mmsegmentation, float16" if half else "mmsegmentation",
            model=method,
            gpu="v100",
            level="allocated",
            measured_bytes=round(float(memory) * GIB),
            rounded_to_bytes=GIB // 10 ** len(memory.split(".")[1]),
            spec={
                "method": method,
                "depth": backbone.rstrip("bh"),
                "size": [int(height), int(width)],
                "batch": int(images),
                "classes": int(classes),
                "half": half,
                "plain": plain,
            },
        )


class LogSoftmax(torch.autograd.Function):
    """Over channels; input and result are kept for backward, as torch before 1.12 did (derivatives.yaml)."""

    @staticmethod
    def forward(ctx: Any, logits_NKHW: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        found_NKHW = torch.log_softmax(logits_NKHW, 1)
        ctx.save_for_backward(logits_NKHW, found_NKHW)
        return found_NKHW

    @staticmethod
    def backward(ctx: Any, grad_NKHW: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits_NKHW, found_NKHW = ctx.saved_tensors
        backward: Any = getattr(torch.ops.aten, "_log_softmax_backward_data")  # noqa: B009  it has no public name
        return backward(grad_NKHW, found_NKHW, 1, logits_NKHW.dtype)


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU in place."""
    padding = dilation * (kernel // 2)
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Block(nn.Module):
    """A residual block: two convolutions of 3 x 3 (R-18), else a bottleneck with the stride in the middle."""

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, deep: bool) -> None:
        super().__init__()
        outputs = 4 * width if deep else width
        if deep:
            first, last = conv(inputs, width, 1), nn.Conv2d(width, outputs, 1, bias=False)
            self.body = nn.Sequential(*first, *conv(width, width, 3, stride, dilation), last, nn.BatchNorm2d(outputs))
        else:
            last = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
            self.body = nn.Sequential(*conv(inputs, width, 3, stride, dilation), last, nn.BatchNorm2d(width))
        short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        changes = stride > 1 or inputs != outputs
        self.short = nn.Sequential(short, nn.BatchNorm2d(outputs)) if changes else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        out_NCHW = self.body(x_NCHW)
        out_NCHW += self.short(x_NCHW)
        return self.relu(out_NCHW)


class ResNet(nn.Module):
    """ResNet-V1c, whose stem has three convolutions; R-18b and the like are V1, with one of 7 x 7.

    Args:
        strides, dilations: of the four stages. The first block of a dilated stage has half the dilation.
    """

    def __init__(self, depth: str, strides: Sequence[int], dilations: Sequence[int], plain_stem: bool) -> None:
        super().__init__()
        deep = depth != "R-18"
        stem = conv(3, 64, 7, 2) if plain_stem else nn.Sequential(*conv(3, 32, 3, 2), *conv(32, 32), *conv(32, 64))
        self.stem = nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList()
        inputs = 64
        for stage, (count, stride, dilation) in enumerate(zip(BLOCKS[depth], strides, dilations, strict=True)):
            width = 64 * 2**stage
            first = dilation // 2 if dilation > 1 else dilation
            blocks: list[nn.Module] = [Block(inputs, width, stride, first, deep)]
            inputs = 4 * width if deep else width
            blocks += [Block(inputs, width, 1, dilation, deep) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x_NCHW: Tensor) -> list[Tensor]:
        x_NCHW = self.stem(x_NCHW)
        outs: list[Tensor] = []
        for stage in self.stages:
            x_NCHW = stage(x_NCHW)
            outs.append(x_NCHW)
        return outs


def resized(x_NCHW: Tensor, size: Sequence[int], aligned: bool) -> Tensor:
    """Bilinear interpolation."""
    return functional.interpolate(x_NCHW, list(size), mode="bilinear", align_corners=aligned)


class Head(nn.Module):
    """What all heads have: dropout and a classifier of 1 x 1."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.dropout, self.classifier = nn.Dropout2d(0.1), nn.Conv2d(width, classes, 1)

    def classify(self, x_NCHW: Tensor) -> Tensor:
        return self.classifier(self.dropout(x_NCHW))


class FcnHead(Head):
    """One or two convolutions on one stage, with the stage beside them if there are two."""

    def __init__(self, stage: int, inputs: int, width: int, count: int, classes: int) -> None:
        super().__init__(width, classes)
        self.stage = stage
        self.convs = nn.Sequential(conv(inputs, width), *(conv(width, width) for _ in range(count - 1)))
        self.joined = conv(inputs + width, width) if count > 1 else None

    def forward(self, stages: list[Tensor]) -> Tensor:
        out_NCHW = self.convs(stages[self.stage])
        if self.joined is not None:
            out_NCHW = self.joined(torch.cat([stages[self.stage], out_NCHW], dim=1))
        return self.classify(out_NCHW)


class Pyramid(nn.Module):
    """Pooling at four scales, beside what was pooled, and a convolution over all."""

    def __init__(self, inputs: int, width: int, aligned: bool) -> None:
        super().__init__()
        self.aligned = aligned
        self.pools = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(s), *conv(inputs, width, 1)) for s in POOLS)
        self.joined = conv(inputs + len(POOLS) * width, width)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        pooled = [resized(pool(x_NCHW), x_NCHW.shape[2:], self.aligned) for pool in self.pools]
        return self.joined(torch.cat([x_NCHW, *pooled], dim=1))


class PspHead(Head):
    def __init__(self, inputs: int, width: int, classes: int, aligned: bool) -> None:
        super().__init__(width, classes)
        self.pyramid = Pyramid(inputs, width, aligned)

    def forward(self, stages: list[Tensor]) -> Tensor:
        return self.classify(self.pyramid(stages[3]))


class AsppHead(Head):
    """DeepLabV3: an image pool and four convolutions of different dilation, side by side."""

    def __init__(self, inputs: int, width: int, classes: int, aligned: bool) -> None:
        super().__init__(width, classes)
        self.aligned = aligned
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *conv(inputs, width, 1))
        kinds = ((1, 1), (3, 12), (3, 24), (3, 36))
        self.sides = nn.ModuleList(conv(inputs, width, kernel, dilation=dilation) for kernel, dilation in kinds)
        self.joined = conv(5 * width, width)

    def forward(self, stages: list[Tensor]) -> Tensor:
        x_NCHW = stages[3]
        outs = [resized(self.pool(x_NCHW), x_NCHW.shape[2:], self.aligned)]
        outs.extend([side(x_NCHW) for side in self.sides])
        return self.classify(self.joined(torch.cat(outs, dim=1)))


class UperHead(Head):
    """A pyramid on the last stage, a feature pyramid over all, and a convolution over that."""

    def __init__(self, inputs: Sequence[int], width: int, classes: int, aligned: bool) -> None:
        super().__init__(width, classes)
        self.aligned = aligned
        self.pyramid = Pyramid(inputs[-1], width, aligned)
        self.laterals = nn.ModuleList(conv(each, width, 1) for each in inputs[:-1])
        self.convs = nn.ModuleList(conv(width, width) for _ in inputs[:-1])
        self.joined = conv(len(inputs) * width, width)

    def forward(self, stages: list[Tensor]) -> Tensor:
        outs = [lateral(stage) for lateral, stage in zip(self.laterals, stages, strict=False)]
        outs.append(self.pyramid(stages[-1]))
        for i in range(len(outs) - 1, 0, -1):
            outs[i - 1] += resized(outs[i], outs[i - 1].shape[2:], self.aligned)
        done = [layer(out) for layer, out in zip(self.convs, outs, strict=False)]
        done.append(outs[-1])
        for i in range(len(done) - 1, 0, -1):
            done[i] = resized(done[i], done[0].shape[2:], self.aligned)
        return self.classify(self.joined(torch.cat(done, dim=1)))


class Segmenter(nn.Module):
    """Backbone, head and auxiliary head."""

    def __init__(self, method: str, depth: str, classes: int, aligned: bool, plain_stem: bool) -> None:
        super().__init__()
        dense = method != "UPerNet"
        strides, dilations = ((1, 2, 1, 1), (1, 1, 2, 4)) if dense else ((1, 2, 2, 2), (1, 1, 1, 1))
        self.backbone = ResNet(depth, strides, dilations, plain_stem)
        small = depth == "R-18"
        inputs = [64, 128, 256, 512] if small else [256, 512, 1024, 2048]
        width, aside = (128, 64) if small else (512, 256)
        self.head: Head
        if method == "FCN":
            self.head = FcnHead(3, inputs[3], width, 2, classes)
        elif method == "PSPNet":
            self.head = PspHead(inputs[3], width, classes, aligned)
        elif method == "DeepLabV3":
            self.head = AsppHead(inputs[3], width, classes, aligned)
        else:
            self.head = UperHead(inputs, width, classes, aligned)
        self.aside = FcnHead(2, inputs[2], aside, 1, classes)
        self.aligned = aligned

    def losses(self, images_NCHW: Tensor, labels_NHW: Tensor) -> list[Tensor]:
        stages = self.backbone(images_NCHW)
        return [self.loss(self.head(stages), labels_NHW), 0.4 * self.loss(self.aside(stages), labels_NHW)]

    def loss(self, logits_NKHW: Tensor, labels_NHW: Tensor) -> Tensor:
        logits_NKHW = resized(logits_NKHW.float(), labels_NHW.shape[1:], self.aligned)
        found_NKHW: Any = LogSoftmax.apply(logits_NKHW)
        each_NHW = functional.nll_loss(found_NKHW, labels_NHW, reduction="none", ignore_index=255)
        found = logits_NKHW.topk(1, dim=1)[1].transpose(0, 1)
        found.eq(labels_NHW.unsqueeze(0).expand_as(found))
        return each_NHW.mean()


def train(*, method: str, depth: str, size: Sequence[int], batch: int, classes: int, half: bool, plain: bool) -> None:
    """The steps of a row, without end.

    Args:
        size: height and width of a crop.
        batch: images of a GPU.
        half: convolutions in float16, with float32 weights.
        plain: ResNet-V1.
    """
    net = Segmenter(method, depth, classes, size[0] % 8 == 1, plain).to("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=False)
    buckets = _buckets(sum(parameter.numel() * 4 for parameter in net.parameters()))
    while True:
        images_NCHW = torch.zeros(batch, 3, *size).to("cuda")
        labels_NHW = torch.zeros(batch, *size, dtype=torch.long).to("cuda")
        with torch.autocast("cuda", torch.float16, enabled=half):
            losses = net.losses(images_NCHW, labels_NHW)
        optimizer.zero_grad(set_to_none=False)
        sum(losses).backward()
        optimizer.step()
        del losses
    del buckets


def _buckets(size_bytes: int) -> list[Tensor]:
    """Copies of all gradients."""
    full, rest = divmod(size_bytes, BUCKET_BYTES)
    return [torch.empty(each, dtype=torch.uint8, device="cuda") for each in [BUCKET_BYTES] * full + [rest] if each]
