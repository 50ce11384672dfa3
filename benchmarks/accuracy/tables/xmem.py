"""xMem's runs of convolutional nets (arXiv:2510.21048), with its own prediction and those of DNNMem and SchedTune.

From the results in the repository Stone-ResearchLife/xMem: plot/data/002-Monte Carlo/CNN/001, and one run of 001-Anova.
Which ones were read was decided by their names. Its training loop says the rest: CIFAR-10 at 86 x 86, float32, learning
rate 0.001, four steps, torch 2.6. Gradients are dropped between forward and backward: that is the default of its
trainer, and the results are of before another could be asked for, as their settings have no `zero_out` (exp/trainer).
The measured figure is the driver's, less that of a first sample (exp/run.py, `_get_ground_truth`). By then there is a
context, which `set_per_process_memory_fraction` made. So it is held against the reserved peak within the capacity. What
is loaded beside a context later is in it, and is not known. And the thread that takes samples is started right before
the model is moved (exp/trainer/train_loop.py; the loop for transformers waits 2 s there): what of the model is on the
GPU at its first sample, from nothing to all, is missing.
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
"""Functions of torchvision."""
CLASSES = {"MobeNetV3Small": 10}
"""Of nets that had not ImageNet's 1000 (perf_estimator/models.py)."""
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
            late=True,
            spec={"model": model, "optimizer": optimizer, "batch": int(batch)},
            rivals=dict(zip(RIVALS, map(int, predicted), strict=True)),
        )


def train(*, model: str, optimizer: str, batch: int) -> None:
    """The steps of a row, without end."""
    import torch
    import torchvision

    net = getattr(torchvision.models, MAKERS[model])(num_classes=CLASSES.get(model, 1000)).to("cuda")
    steps = getattr(torch.optim, optimizer)(net.parameters(), lr=0.001)
    while True:
        images, labels = torch.zeros(batch, 3, 86, 86), torch.zeros(batch, dtype=torch.long)
        images, labels = images.to("cuda"), labels.to("cuda")
        outputs = net(images)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        _, _found = torch.max(outputs, 1)
