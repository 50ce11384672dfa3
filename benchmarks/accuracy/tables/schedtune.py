"""SchedTune's table: 12 convolutional nets at 4 batch sizes on 5 GPUs, device memory as nvidia-smi shows it.

Not given are optimizer, torch, CUDA and driver. Taken are 224 x 224 images, as the table's input bytes say, float32,
SGD with momentum, and CUDA before 11.7, as the table is of 2022 at the latest: all kernels are loaded at once. Before
torch 2.0 (March 2023) optimizers took one tensor after the other, and zero_grad() kept gradients and filled them with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.tables.row import MIB, Row, lines

GPU_OF_CORES = {"2496": "k80", "2560": "t4", "5888": "rtx3070", "5120": "v100", "10496": "rtx3090"}
"""SchedTune names a GPU by its CUDA cores."""
CAPTURED_ON = {"rtx3090": "rtx3070"}
"""One capture for both: what cuDNN takes goes with the compute capability."""
LOADING = "eager"


def rows(folder: Path) -> Iterator[Row]:
    """The rows of schedtune_model_stats.csv."""
    for model, batch, _, _, _, measured_mib, cores, *_ in lines(folder / "schedtune_model_stats.csv"):
        yield Row(
            id=f"schedtune-{model}-b{batch}-{GPU_OF_CORES[cores]}",
            family="SchedTune",
            model=model,
            gpu=GPU_OF_CORES[cores],
            level="device",
            measured_bytes=int(float(measured_mib)) * MIB,
            rounded_to_bytes=MIB,
            spec={"model": model, "batch": int(batch)},
        )


def train(*, model: str, batch: int) -> None:
    """The steps of a row, without end."""
    import torch
    import torchvision

    net = getattr(torchvision.models, model)().to("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    while True:
        images = torch.zeros(batch, 3, 224, 224).to("cuda")
        labels = torch.zeros(batch, dtype=torch.long).to("cuda")
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
