"""Trainings whose scaling is simulated: each is captured once, as rank 0 of a job on a virtual GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import ROOT
from elbowroom.capture.job_rank import JobRank
from elbowroom.machine import Machine
from elbowroom.trace import Trace

STEPS = 2
DEEP = (3, 8, 36, 3)
"""Blocks of ResNet-152's stages (He et al. 2015)."""


def _resnet(batch: int, *, deep: bool = False, half: bool = False) -> None:
    """The steps of a ResNet under DistributedDataParallel, without end."""
    import torch
    import torch.distributed as dist

    from benchmarks.cases import resnet50

    if deep:
        resnet50.STAGES = tuple((width, n) for (width, _), n in zip(resnet50.STAGES, DEEP, strict=True))
    dist.init_process_group("nccl")
    net = resnet50.ResNet50(checkpointed=False).cuda()
    model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    while True:
        images = torch.zeros(batch, 3, 224, 224, device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def _llama() -> None:
    from benchmarks.accuracy.tables import torchtitan

    torchtitan.train(batch=2, ranks=int(os.environ["WORLD_SIZE"]))


TRAININGS: dict[str, Callable[[], None]] = {
    "llama": _llama,
    "resnet50": lambda: _resnet(128),
    "resnet50-32": lambda: _resnet(32),
    "resnet152": lambda: _resnet(128, deep=True, half=True),
    "resnet152-512": lambda: _resnet(512, deep=True, half=True),
}


def captured(training: str, gpu: str, ranks: int, local: int) -> Trace:
    """Capture a training as rank 0 of a job, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        order = json.dumps([training, gpu, ranks, local, str(path)])
        environment = {**os.environ, **JobRank.of(0, ranks, local).environment()}
        subprocess.run([sys.executable, "-m", __name__, order], cwd=ROOT, env=environment, check=True)
        return Trace.load(path)


def main(order: str) -> None:
    import torch

    from elbowroom.capture.virtual import VirtualDevice

    training, gpu, ranks, local, path = json.loads(order)
    torch.set_num_threads(1)
    with VirtualDevice(Machine.of(gpu), STEPS, job=JobRank.of(0, ranks, local)) as device:
        TRAININGS[training]()
    device.trace().save(path)


if __name__ == "__main__":
    main(sys.argv[1])
