"""xMem's runs of convolutional nets (arXiv:2510.21048), with its own prediction and those of DNNMem and SchedTune.

From the results in the repository Stone-ResearchLife/xMem: plot/data/002-Monte Carlo/CNN/001, and one run of 001-Anova.
Which ones were read was decided by their names. Its training loop says the rest: CIFAR-10 at 86 x 86, float32, learning
rate 0.001, three steps, torch 2.6. Whether gradients were dropped before the batch was loaded or before backward was
drawn at random and is not given; the former is taken.
The measured figure is the driver's, less what was held before: MobileNetV3's smallest run has fewer bytes than its
tensors and any context. So it is held against the reserved peak within the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.tables.row import MIB, Row, lines

MAKERS = {
    "ConvNeXtBase": "convnext_base",
    "ConvNeXtTiny": "convnext_tiny",
    "MobeNetV3Small": "mobilenet_v3_small",
    "MobileNetV2": "mobilenet_v2",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
"""Functions of torchvision; MobileNetV3 had 10 classes there, which are 1 MB less."""
RIVALS = ("xMem", "DNNMem", "SchedTune")


def rows(_folder: Path) -> Iterator[Row]:
    """The rows of xmem.csv beside this module."""
    for model, optimizer, batch, gpu, measured, *predicted in lines(Path(__file__).with_name("xmem.csv")):
        yield Row(
            id=f"xmem-{model}-{optimizer}-b{batch}-{gpu}",
            family="xMem",
            model=model,
            gpu=gpu,
            level="within",
            measured_bytes=int(measured) if measured else None,
            rounded_to_bytes=2 * MIB,
            spec={"model": model, "optimizer": optimizer, "batch": int(batch)},
            rivals=dict(zip(RIVALS, map(int, predicted), strict=True)),
        )


def train(*, model: str, optimizer: str, batch: int) -> None:
    """The steps of a row, without end."""
    import torch
    import torchvision

    net = getattr(torchvision.models, MAKERS[model])().to("cuda")
    steps = getattr(torch.optim, optimizer)(net.parameters(), lr=0.001)
    while True:
        images, labels = torch.zeros(batch, 3, 86, 86), torch.zeros(batch, dtype=torch.long)
        steps.zero_grad()
        images, labels = images.to("cuda"), labels.to("cuda")
        outputs = net(images)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        steps.step()
        _, _found = torch.max(outputs, 1)
