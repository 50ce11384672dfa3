"""Simulated joules beside published ones: `python -m benchmarks.energy [--plans] [--table]`.

Published are two tables of others. Zeus (NSDI 2023, github.com/ml-energy/zeus) has the time and the average power of an
epoch on four GPUs; zeus_power.csv is an excerpt, at the highest power limit. YeQiao/Pytorch_GPU_Benchmark has the power
and the time of 30 epochs of ResNet-18 on CIFAR-10; resnet18_power.csv has its rows of NVIDIA GPUs. The shares of
src/elbowroom/hardware/power.py were set with Zeus' rows of NCF, ShuffleNet and BERT; those of ResNet-50 were not used.

--plans makes plans by time and by energy for the same budgets. It writes benchmarks/results/energy_DATE.json, and
--table only the tables of docs/energy.md from the newest of these files.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from benchmarks.planning.models import setup_of
from benchmarks.results import RESULTS, ROOT, facts, newest_results, replace_between, write_result
from elbowroom.hardware.power import COMPUTE_SHARE, IDLE_SHARE, STREAM_POWER_SHARE, Spread
from elbowroom.machine import Machine
from elbowroom.simulate.energy import Energy, energy_of
from elbowroom.trace import Trace

CASE = "energy"
DOCS = ROOT / "docs" / "energy.md"
HERE = Path(__file__).parent
IMAGENET, CIFAR = 1_281_167, 50_000
"""Images of an epoch."""
EPOCHS = 30
TURING = "quadro-rtx6000"
"""Zeus' Turing card is not in the table of GPUs: the Quadro RTX 8000 is the same chip with more memory."""
SHARES: dict[str, tuple[str, Spread]] = {
    "idle": ("ncf", IDLE_SHARE),
    "memory-bound": ("shufflenetv2", STREAM_POWER_SHARE),
    "compute-bound": ("bert_base_uncased", COMPUTE_SHARE),
}
"""By class of an op, the network of Zeus' table that its share of the board's power is set by."""
PLANNED = (("resnet50", "v100-16gb", 0.35), ("resnet50", "rtx3060", 0.35), ("resnet50", "rtx3060", 0.25))
"""Case, GPU and budget as a share of what everything kept reserves."""


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut. Shapes: B batch, C channels, H W the image's sides."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        same = channels == width and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.norm1(self.conv1(x_BCHW)))
        return functional.relu(self.norm2(self.conv2(y_BCHW)) + self.shortcut(x_BCHW))


def small_resnet18() -> nn.Module:
    """ResNet-18 for images of 32 x 32: the first convolution keeps their size, and nothing is pooled."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for stage in range(4):
        for number in range(2):
            blocks.append(Block(channels, 64 << stage, 2 if stage and not number else 1))
            channels = 64 << stage
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def small_setup(batch: int, precision: str) -> Callable[[], Callable[[], object]]:
    """The setup of ResNet-18 on CIFAR-10, SGD with momentum, as YeQiao trains it."""

    def setup() -> Callable[[], object]:
        net = small_resnet18().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        images, labels = torch.randn(batch, 3, 32, 32, device="cuda"), torch.randint(10, (batch,), device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=precision == "float16"):
                loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()

        return step

    return setup


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open() as file:
        return list(csv.DictReader(file))


def shares() -> dict[str, dict[str, float]]:
    """The average power of Zeus' rows as shares of the limit, by class and GPU; of NCF the median of its batches."""
    found: dict[str, dict[str, float]] = {}
    for kind, (network, _) in SHARES.items():
        by_gpu: dict[str, list[float]] = {}
        for row in _rows("zeus_power.csv"):
            if row["network"] == network:
                by_gpu.setdefault(row["gpu"], []).append(float(row["average_watts"]) / float(row["limit_watts"]))
        found[kind] = {gpu: statistics.median(each) for gpu, each in by_gpu.items()}
    return found


def published() -> Iterator[dict[str, Any]]:
    """The published steps, each with the simulated one."""
    for row in _rows("zeus_power.csv"):
        if row["network"] == "resnet50":
            batch, machine = int(row["batch"]), Machine.of(row["gpu"] if row["gpu"] != TURING else "quadro-rtx8000")
            steps = IMAGENET / batch
            seconds, watts = float(row["epoch_s"]) / steps, float(row["average_watts"])
            yield _compared("Zeus", "ResNet-50", row["gpu"], "float32", batch, seconds, watts) | _simulated(
                setup_of("resnet50", batch=batch), machine
            )
    for row in _rows("resnet18_power.csv"):
        batch, machine = int(row["batch"]), Machine.of(row["gpu"])
        seconds, watts = float(row["time_s"]) / EPOCHS / (CIFAR / batch), float(row["watts"])
        yield _compared("YeQiao", "ResNet-18, CIFAR", row["gpu"], row["precision"], batch, seconds, watts) | _simulated(
            small_setup(batch, row["precision"]), machine
        )


def _compared(
    source: str, model: str, gpu: str, precision: str, batch: int, seconds: float, watts: float
) -> dict[str, Any]:
    return {
        "source": source,
        "model": model,
        "gpu": gpu,
        "precision": precision,
        "batch": batch,
        "published_ns": round(seconds * 1e9),
        "published_watts": watts,
        "published_millijoules": round(seconds * watts * 1e3),
    }


def _simulated(setup: Callable[[], Callable[[], object]], machine: Machine) -> dict[str, Any]:
    trace = er.capture(setup, machine=machine, steps=2)
    line = er.simulate(trace, machine)
    return {"step_ns": line.step_ns, "energy": _figures(energy_of(line, trace, machine))}


def _figures(energy: Energy | None) -> dict[str, int]:
    assert energy is not None, "the GPUs here have a board power"
    return {name: getattr(energy, f"{name}_millijoules") for name in ("least", "likely", "most", "copies")}


def plans() -> Iterator[dict[str, Any]]:
    """Plans by time and by energy for the same budgets."""
    for case, gpu, share in PLANNED:
        machine = Machine.of(gpu)
        trace = er.capture(setup_of(case), machine=machine, steps=2, in_parts=True)
        kept = er.simulate(trace, machine)
        budget = int(share * kept.peak_reserved_bytes)
        row: dict[str, Any] = {"case": case, "gpu": gpu, "share": share, "budget_bytes": budget}
        row["kept"] = _of_line(kept, trace, machine)
        for objective in ("time", "energy"):
            made = er.plan(trace, machine, budget, objective=objective, time_limit_s=3)
            row[objective] = _of_line(er.simulate(trace, machine, made), trace, machine)
        yield row


def _of_line(line: er.Timeline, trace: Trace, machine: Machine) -> dict[str, Any]:
    return {
        "step_ns": line.step_ns,
        "stall_ns": line.stall_ns,
        "recompute_ns": line.recompute_ns,
        "moved_bytes": line.swapped_out_bytes + line.swapped_back_bytes,
        "energy": _figures(energy_of(line, trace, machine)),
    }


def shares_table(result: dict[str, Any]) -> str:
    """The shares of the board's power, by class and GPU."""
    found: dict[str, dict[str, float]] = result["shares"]
    gpus = list(next(iter(found.values())))
    lines = [
        "| class | set by | " + " | ".join(gpus) + " | least, likely, most |",
        "|---|---|" + "---|" * len(gpus) + "---|",
    ]
    for kind, (network, spread) in SHARES.items():
        cells = " | ".join(f"{found[kind][gpu]:.2f}" for gpu in gpus)
        lines.append(f"| {kind} | {network} | {cells} | {spread.least:.2f}, {spread.likely:.2f}, {spread.most:.2f} |")
    return "\n".join(lines)


def published_table(result: dict[str, Any]) -> str:
    """Published steps beside simulated ones."""
    lines = [
        "| source | model | GPU | precision | batch | published | simulated (least to most) | joules | time | power |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["published"]:
        least, likely, most = (row["energy"][name] / 1e3 for name in ("least", "likely", "most"))
        joules, watts = row["published_millijoules"] / 1e3, likely / row["step_ns"] * 1e9
        cells = (
            *(row["source"], row["model"], row["gpu"], row["precision"], str(row["batch"])),
            f"{joules:.1f} J, {row['published_watts']:.0f} W",
            f"{likely:.1f} J ({least:.1f} to {most:.1f}), {watts:.0f} W",
            f"{likely / joules:.2f}",
            f"{row['step_ns'] / row['published_ns']:.2f}",
            f"{watts / row['published_watts']:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plans_table(result: dict[str, Any]) -> str:
    """Plans by time and by energy."""
    lines = [
        "| model | GPU | budget | chosen by | step | stall | recompute | moved | energy, likely | of everything kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["plans"]:
        for objective in ("time", "energy"):
            made, kept = row[objective], row["kept"]["energy"]["likely"]
            lines.append(
                f"| {row['case']} | {row['gpu']} | {row['share']:.0%} | {objective} | {made['step_ns'] / 1e6:.0f} ms "
                f"| {made['stall_ns'] / 1e6:.0f} ms | {made['recompute_ns'] / 1e6:.0f} ms "
                f"| {made['moved_bytes'] / 2**30:.2f} GiB | {made['energy']['likely'] / 1e3:.1f} J "
                f"| {made['energy']['likely'] / kept:.3f} |"
            )
    return "\n".join(lines)


TABLES = {"shares": shares_table, "published": published_table, "plans": plans_table}


def with_tables(page: str, result: dict[str, Any]) -> str:
    """Return the page with its tables made from a result."""
    for name, table in TABLES.items():
        page = replace_between(page, f"<!-- {name} -->", f"<!-- end of {name} -->", table(result))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plans", action="store_true", help="make the plans anew too: some minutes")
    parser.add_argument("--table", action="store_true", help="only write the tables into docs/energy.md")
    given = parser.parse_args()
    known = newest_results(RESULTS).get(CASE, {})
    if not given.table:
        kept = {"plans": list(plans())} if given.plans else {"plans": known["plans"]}
        known = {"case": CASE, **facts(), "shares": shares(), "published": list(published()), **kept}
        write_result(RESULTS / f"{CASE}_{datetime.datetime.now(datetime.UTC):%Y%m%d}.json", known)
    DOCS.write_text(with_tables(DOCS.read_text("utf-8"), known), "utf-8")


if __name__ == "__main__":
    main()
