"""Simulated steps beside published ones: `python -m benchmarks.step_times`.

The durations of a virtual device are a model (src/elbowroom/capture/durations/costs.py).
This shows how far its steps are from what others measured and published, each with its source; docs/step-times.md
holds the table.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import elbowroom as er
from benchmarks.planning.models import setup_of
from elbowroom.machine import Machine

NVIDIA = "NVIDIA DeepLearningExamples, PyTorch ResNet50 v1.5, 21.03"
KUMAR = "sandeepkumar-skb/pytorch_experiments, torchvision_exp"
JOHNSON = "jcjohnson/cnn-benchmarks, Torch 7, cuDNN 5.0; forward and backward"
KARPATHY = 'Karpathy, "Let\'s reproduce GPT-2 (124M)", its outline at Class Central'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published step.

    Attributes:
        case, machine, precision, changes: what is simulated, see benchmarks.planning.models.
        published_ms: time of the step; of a rate, batch / rate.
        source: where it stands.
        note: how the published run differs.
    """

    case: str
    machine: str
    precision: str
    published_ms: float
    source: str
    note: str = ""
    changes: dict[str, Any] = field(default_factory=dict[str, Any])


def _resnet50(
    machine: str, precision: str, published_ms: float, source: str, last: bool = False, batch: int = 128
) -> Row:
    note = "NHWC" if last else ""
    changes = {"batch": batch, "channels_last": last}
    return Row(
        case="resnet50",
        machine=machine,
        precision=precision,
        published_ms=published_ms,
        source=source,
        note=note,
        changes=changes,
    )


def _johnson(case: str, machine: str, published_ms: float) -> Row:
    return Row(
        case=case,
        machine=machine,
        precision="float32",
        published_ms=published_ms,
        source=JOHNSON,
        changes={"batch": 16},
    )


def _gpt2(precision: str, published_ms: float) -> Row:
    return Row(
        case="gpt2_small",
        machine="a100-80gb",
        precision=precision,
        published_ms=published_ms,
        source=KARPATHY,
        changes={"batch": 16, "dropout": 0.0, "plain": True},
    )


ROWS = (
    # images per second: 367 and 1200 on a V100 16 GB, 938 and 2470 on an A100 80 GB
    _resnet50("v100-sxm2-16gb", "float32", 128 / 367 * 1e3, NVIDIA),
    _resnet50("v100-sxm2-16gb", "float16", 128 / 1200 * 1e3, NVIDIA, last=True),
    _resnet50("a100-80gb", "float32", 256 / 938 * 1e3, NVIDIA, batch=256),
    _resnet50("a100-80gb", "float16", 256 / 2470 * 1e3, NVIDIA, last=True, batch=256),
    _resnet50("v100-sxm2-16gb", "float32", 342.37, KUMAR),
    _resnet50("v100-sxm2-16gb", "float16", 152.20, KUMAR),
    _resnet50("v100-sxm2-16gb", "float16", 110.93, KUMAR, last=True),
    _johnson("vgg16", "titan-x-maxwell", 262.42),
    _johnson("resnet50", "titan-x-maxwell", 171.02),
    _johnson("resnet200", "titan-x-maxwell", 493.82),
    _johnson("vgg16", "gtx1080", 232.55),
    _johnson("resnet50", "gtx1080", 153.90),
    # 16 x 1024 tokens on an A100, without dropout, attention in plain products
    _gpt2("float32", 1000),
    _gpt2("tf32", 333),
    _gpt2("bfloat16", 300),
)


def simulated_ms(row: Row) -> float:
    """Time of the last of two steps on the virtual device, when everything is kept."""
    machine = Machine.of(row.machine)
    trace = er.capture(setup_of(row.case, row.precision, **row.changes), machine=machine, steps=2)
    return er.simulate(trace, machine).step_ns / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    print("| model | GPU | precision | published | simulated | simulated / published | source |")
    print("|---|---|---|---|---|---|---|")
    for row in ROWS:
        found = simulated_ms(row)
        precision = f"{row.precision} {row.note}".strip()
        print(
            f"| {row.case}, batch {row.changes['batch']} | {row.machine} | {precision} | {row.published_ms:.0f} ms "
            f"| {found:.0f} ms | {found / row.published_ms:.2f} | {row.source} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
