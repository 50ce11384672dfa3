"""The traces of the planning benchmark: `python -m benchmarks.planning.models --into FOLDER [--case NAME]`.

Each case is a model, an optimizer and a batch, captured on a virtual GPU. A trace is kept in a folder of the user's, by
what it was made of; made again only where something of that changed. Data are random numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import elbowroom as er
from benchmarks.planning.nets import dense, images, inception, text
from elbowroom.machine import Machine
from elbowroom.trace import Trace

ROOT = Path(__file__).parent
Setup = Callable[[], Callable[[], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of training.

    Attributes:
        words: what it is, in words.
        build: makes the function of one step's loss from the settings.
        settings: what may be varied, with the values that the benchmark uses.
        optimizer: "sgd" with momentum, or "adamw".
    """

    words: str
    build: Callable[..., Callable[[], torch.Tensor]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optimizer: str = "sgd"


def _classifier(net: nn.Module, batch: int, resolution: int, classes: int, channels_last: bool) -> Any:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to("cuda").to(memory_format=layout)
    pictures = torch.randn(batch, 3, resolution, resolution, device="cuda").to(memory_format=layout)
    labels = torch.randint(classes, (batch,), device="cuda")
    return net, lambda: functional.cross_entropy(net(pictures), labels)


def _resnet(depth: int, batch: int, resolution: int, channels_last: bool = False) -> Any:
    return _classifier(images.ResNet(depth), batch, resolution, 1000, channels_last)


def _deep_resnet(depth: int, batch: int, resolution: int, channels_last: bool = False) -> Any:
    return _classifier(images.DeepResNet(depth), batch, resolution, 10, channels_last)


def _vgg16(batch: int, resolution: int, channels_last: bool = False) -> Any:
    return _classifier(images.Vgg16(resolution), batch, resolution, 1000, channels_last)


def _inception(batch: int, resolution: int, channels_last: bool = False) -> Any:
    return _classifier(inception.InceptionV3(), batch, resolution, 1000, channels_last)


def _unet3d(batch: int, resolution: int, base: int) -> Any:
    net = dense.UNet3d(base=base).cuda()
    volume = torch.randn(batch, 4, resolution, resolution, resolution, device="cuda")
    labels = torch.randint(4, (batch, resolution, resolution, resolution), device="cuda")
    return net, lambda: functional.cross_entropy(net(volume), labels)


def _deeplab(batch: int, resolution: int) -> Any:
    net = dense.DeepLabV3().cuda()
    pictures = torch.randn(batch, 3, resolution, resolution, device="cuda")
    labels = torch.randint(21, (batch, resolution, resolution), device="cuda")
    return net, lambda: functional.cross_entropy(net(pictures), labels)


def _gpt2(size: str, batch: int, tokens: int, dropout: float, plain: bool) -> Any:
    net = text.Gpt2(size, tokens, dropout, plain).cuda()
    words = torch.randint(50_257, (batch, tokens), device="cuda")
    return net, lambda: net(words)


def _llama(size: str, batch: int, tokens: int, layers: int | None) -> Any:
    net = text.Llama(size, tokens, layers).cuda()
    words = torch.randint(32_000, (batch, tokens), device="cuda")
    return net, lambda: net(words)


def _translator(batch: int, tokens: int) -> Any:
    net = text.Translator().cuda()
    source, target = (torch.randint(32_000, (batch, tokens), device="cuda") for _ in range(2))
    return net, lambda: net(source, target)


CASES: dict[str, Case] = {
    "resnet50": Case(
        words="ResNet-50, 224 x 224", build=_resnet, settings={"depth": 50, "batch": 64, "resolution": 224}
    ),
    "resnet200": Case(
        words="ResNet-200 with pre-activation, 224 x 224",
        build=_resnet,
        settings={"depth": 200, "batch": 32, "resolution": 224},
    ),
    "resnet1001": Case(
        words="ResNet-1001 for CIFAR (9 n + 2 layers, n = 111)",
        build=_deep_resnet,
        settings={"depth": 1001, "batch": 32, "resolution": 32},
    ),
    "resnet2000": Case(
        words="ResNet-2000 for CIFAR (9 n + 2 layers, n = 222)",
        build=_deep_resnet,
        settings={"depth": 2000, "batch": 32, "resolution": 32},
    ),
    "vgg16": Case(words="VGG-16, 224 x 224", build=_vgg16, settings={"batch": 256, "resolution": 224}),
    "inception_v3": Case(words="Inception-V3, 299 x 299", build=_inception, settings={"batch": 32, "resolution": 299}),
    "unet3d": Case(
        words="3D U-Net of four levels, whole volumes of four channels",
        build=_unet3d,
        settings={"batch": 1, "resolution": 192, "base": 32},
        optimizer="adamw",
    ),
    "deeplabv3": Case(
        words="DeepLabV3 on ResNet-50, output stride 16", build=_deeplab, settings={"batch": 8, "resolution": 513}
    ),
    **{
        f"gpt2_{size}": Case(
            words=f"GPT-2 {size}",
            build=_gpt2,
            settings={"size": size, "batch": 4, "tokens": 1024, "dropout": 0.1, "plain": False},
            optimizer="adamw",
        )
        for size in text.GPT2
    },
    "llama_1b": Case(
        words="Llama 3.2 of 1B",
        build=_llama,
        settings={"size": "1b", "batch": 2, "tokens": 2048, "layers": None},
        optimizer="adamw",
    ),
    "llama_7b_layers": Case(
        words="four layers of Llama 2 of 7B, with embedding and head",
        build=_llama,
        settings={"size": "7b", "batch": 2, "tokens": 2048, "layers": 4},
        optimizer="adamw",
    ),
    "nmt": Case(
        words="LSTM translator with attention, 50 tokens to 50",
        build=_translator,
        settings={"batch": 128, "tokens": 50},
        optimizer="adamw",
    ),
}


def setup_of(name: str, precision: str = "float32", **changes: Any) -> Setup:
    """The setup of a case for `er.capture`.

    Args:
        name: one of CASES.
        precision: "float32", "tf32" (products of matrices too), or "bfloat16" or "float16" for autocast.
        changes: settings that differ from the case's own, such as batch=128.
    """
    if name not in CASES:
        raise SystemExit(f"case: given {name!r}; allowed is one of {', '.join(CASES)}")
    case = CASES[name]
    if unknown := set(changes) - {*case.settings, "channels_last"}:
        raise SystemExit(f"{name}: given {', '.join(sorted(unknown))}; allowed are {', '.join(case.settings)}")

    def setup() -> Callable[[], Any]:
        net, loss = case.build(**{**case.settings, **changes})
        parameters = net.parameters()
        optimizer = (
            torch.optim.AdamW(parameters, lr=1e-4)
            if case.optimizer == "adamw"
            else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )

        def step() -> None:
            optimizer.zero_grad()
            with _precision(precision):
                value = loss()
            with _precision("tf32" if precision == "tf32" else "float32"):
                value.backward()
            optimizer.step()

        return step

    return setup


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    try:
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        with nullcontext() if precision in ("float32", "tf32") else torch.autocast("cuda", getattr(torch, precision)):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def trace_of(
    name: str,
    machine: str,
    folder: str | Path,
    precision: str = "float32",
    steps: int = 2,
    *,
    in_parts: bool = False,
    **changes: Any,
) -> Trace:
    """The trace of a case on a machine: from the folder, or captured and kept there.

    Args:
        name: one of CASES.
        machine: a GPU of the database.
        folder: where traces are kept; not one of the repository.
        precision: see `setup_of`.
        steps: how many are captured.
        in_parts: carry out the optimizer's step in parts, as a run that moves its states does.
        changes: see `setup_of`.
    """
    asked = {"settings": {**CASES[name].settings, **changes}, "precision": precision, "steps": steps, "parts": in_parts}
    path = _path(name, machine, Path(folder), asked)
    if path.exists():
        return Trace.load(path)
    trace = er.capture(
        setup_of(name, precision, **changes), machine=Machine.of(machine), steps=steps, in_parts=in_parts
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.save(path)
    return trace


def _path(name: str, machine: str, folder: Path, asked: Mapping[str, Any]) -> Path:
    """By everything that a trace depends on: case, machine, torch, and the sources of models and capture."""
    if folder.resolve().is_relative_to(ROOT.parents[1].resolve()):
        raise SystemExit(
            f"--into: given {folder}, in the repository; allowed is a folder elsewhere, as traces are large"
        )
    sources = [Path(__file__), *(ROOT / "nets").rglob("*.py"), *(Path(er.__file__).parent / "capture").rglob("*.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources)))
    digest.update(json.dumps([asked, str(torch.__version__), repr(Machine.of(machine))]).encode())
    return folder / f"{name}_{machine}_{asked['precision']}_{digest.hexdigest()[:12]}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", required=True, help="folder of the traces")
    parser.add_argument("--case", action="append", choices=CASES, help="may be given several times; all otherwise")
    parser.add_argument("--machine", default="a100-80gb")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bfloat16", "float16"])
    given = parser.parse_args()
    print(
        f"{'case':16} {'capture':>8} {'ops':>7} {'storages':>9} {'saves':>6} {'peak':>10} {'step':>9}   {given.machine}"
    )
    for name in given.case or CASES:
        start = time.perf_counter()
        trace = trace_of(name, given.machine, given.into, given.precision)
        seconds = time.perf_counter() - start
        first, end = trace.steps[-1]
        saves = sum(save.saved_at >= first for save in trace.saves)
        line = er.simulate(trace, Machine.of(given.machine))
        print(
            f"{name:16} {seconds:7.1f}s {end - first:7} {len(trace.storages):9} {saves:6} "
            f"{line.peak_allocated_bytes / 2**30:6.1f} GiB {line.step_ns / 1e6:6.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
