"""Memory that others measured on GPUs, beside the estimate. docs/accuracy.md says why other tables are not scored."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy.runner import child

Record = dict[str, Any]
MIB = 2**20
GPU_OF_CORES = {"2496": "k80", "2560": "t4", "5888": "rtx3070", "5120": "v100", "10496": "rtx3090"}
"""SchedTune names a GPU by its CUDA cores."""


def asked(data: Path, limit_s: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Id and maker of a record for each model and batch of SchedTune's table."""
    rows: dict[tuple[str, int], list[Record]] = {}
    with (data / "schedtune_model_stats.csv").open() as file:
        for row in csv.DictReader(file):
            measured = {
                "gpu": GPU_OF_CORES[row["Pipelines/CUDA cores"]],
                "measured_bytes": int(float(row["peak mem usage"]) * MIB),
            }
            rows.setdefault((row["model"], int(row["batchsize"])), []).append(measured)
    for (model, batch), measured in rows.items():
        name = f"schedtune-{model}-b{batch}"
        yield name, lambda n=name, m=model, b=batch, r=measured: _record(n, m, b, r, limit_s)


def _record(name: str, model: str, batch: int, measured: list[Record], limit_s: int) -> Record:
    answer = child({"mode": "public", "model": model, "batch": batch, "measured": measured}, limit_s)
    return {"id": name, "family": "schedtune", "measured": {}, **answer}


def run(*, model: str, batch: int, measured: list[Record]) -> Record:
    """One model at one batch size, estimated for each GPU it was measured on.

    The settings that the table does not give are assumed: 224 x 224 images, as its input bytes say, float32, SGD with
    momentum. The capture is one GPU's, the T4's; the machines differ in what lies outside the allocator.
    """
    import torch
    import torchvision

    from elbowroom.capture.virtual import VirtualDevice
    from elbowroom.estimate import estimate
    from elbowroom.machine import Machine

    torch.set_num_threads(1)
    with VirtualDevice(Machine.of("t4"), 3) as device:
        net = getattr(torchvision.models, model)().to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        while True:
            images = torch.zeros(batch, 3, 224, 224).to("cuda")
            labels = torch.zeros(batch, dtype=torch.long).to("cuda")
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    trace = device.trace()
    rows: list[Record] = []
    for row in measured:
        found = estimate(trace, Machine.of(row["gpu"]))
        rows.append(
            {
                "id": f"{model}-b{batch}-{row['gpu']}",
                "model": model,
                "gpu": row["gpu"],
                "measured_bytes": row["measured_bytes"],
                "device_bytes": list(found.peak_device),
                "reserved_bytes": list(found.peak_reserved),
            }
        )
    return {"rows": rows}
