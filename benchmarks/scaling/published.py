"""Scaling that others measured, each with its source and with what is assumed of its computers."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """Throughput of a GPU on some ranks, as a part of that on fewer.

    Attributes:
        title: model and software.
        training: the training that stands for it, by its name in trainings.py.
        gpu: its GPU.
        local: ranks of a computer.
        interconnect: its links; the network is assumed where the source does not say it.
        base: ranks that the part is of.
        ranks: ranks.
        part: measured part.
        source: where it is from.
    """

    title: str
    training: str
    gpu: str
    local: int
    interconnect: str
    base: int
    ranks: int
    part: float
    source: str


TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 5,762 and 5,605 tokens a second of a GPU"
DLPERF = (
    "Oneflow-Inc/DLPerf, PyTorch/resnet50v1.5/README.md at 019e14a: medians of 2,244.24 (8), 4,372.33 (16) and "
    "8,816.70 (32) images a second, without the loss within a computer, which is of its data loader"
)
DDL = "Cho et al., PowerAI DDL (arXiv:1708.02188): 95 % at 256 GPUs with Caffe; 4 P100 in a computer, 32 images a GPU"
BENCH = "willgpaik, pytorch-ddp-bench: weak scaling of ResNet-152, float16, 8 GPUs of a computer"

PUBLISHED = (
    Published("Llama 3.1 8B, torchtitan, FSDP2", "llama", "h100-sxm", 8, "nvlink-4,8xndr", 8, 128, 5605 / 5762, TITAN),
    Published(
        "ResNet-50, PyTorch DDP",
        "resnet50",
        "v100-sxm2-16gb",
        8,
        "nvlink-2,1xedr",
        8,
        16,
        4372.33 / (2 * 2244.24),
        DLPERF,
    ),
    Published(
        "ResNet-50, PyTorch DDP",
        "resnet50",
        "v100-sxm2-16gb",
        8,
        "nvlink-2,1xedr",
        8,
        32,
        8816.70 / (4 * 2244.24),
        DLPERF,
    ),
    Published("ResNet-50, PowerAI DDL, Caffe", "resnet50-32", "p100-sxm2-16gb", 4, "nvlink-1,1xedr", 4, 256, 0.95, DDL),
    Published("ResNet-152, PyTorch DDP", "resnet152", "v100-sxm2-16gb", 8, "nvlink-2,4xedr", 1, 8, 0.954, BENCH),
    Published("ResNet-152, PyTorch DDP", "resnet152-512", "a100-80gb", 8, "nvlink-3,8xhdr", 1, 8, 0.974, BENCH),
)
