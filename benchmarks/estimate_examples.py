"""The estimates in docs/estimate.md, made again: the four example scripts, and the CUDA build of PyTorch beside them.

    python -m benchmarks.estimate_examples              # prints what docs/estimate.md shows, and rewrites it
    ELBOWROOM_RIG=/path/to/rig python -m benchmarks.estimate_examples

Needs torchvision, transformers with accelerate, and monai. With ELBOWROOM_RIG each script also runs there (the real
allocator and host code, kernels that do nothing), with RIG_PYTHONPATH as its PYTHONPATH; without it, the figures of the
last time stay. There cuBLAS has one workspace and cuDNN none: the same events without the others are held against it.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from elbowroom.allocator import replay
from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.capture.script import capture_script
from elbowroom.capture.virtual.torch_cuda.library_settings import CudnnModel, ModelledDevice
from elbowroom.machine import Machine
from elbowroom.report.answer import rendered
from elbowroom.step.workspaces import conv_workspaces
from elbowroom.trace import Trace
from elbowroom.units import format_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "estimate.md"
RESULTS = ROOT / "benchmarks" / "results" / "estimates"
MARK = "@@"
AROUND = f"""
import runpy, sys, torch
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("{MARK}", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.__version__)
"""


class Case(NamedTuple):
    """A script, its arguments, and those that end it after three steps."""

    title: str
    script: str
    arguments: str
    ending: str
    gpu: str = "rtx4090"


CASES = (
    Case("ResNet-50 on ImageNet (torchvision), float16 autocast", "imagenet_train.py", "--batch-size 256", "--steps 3"),
    Case("A GPT in nanoGPT's manner, bfloat16 autocast", "gpt_train.py", "", ""),
    Case("GPT-2 with the Trainer of transformers, bfloat16", "hf_finetune.py", "--size gpt2 --bf16", "--max_steps 3"),
    Case("3D U-Net (MONAI), float16 autocast", "monai_segmentation.py", "--side 160", "--steps 3"),
)
SEVERAL = Case("", "imagenet_train.py", "--batch-size 256", "", gpu="rtx3060,rtx4090,a100-40gb")
LARGEST = "largest examples/hf_finetune.py --vary per_device_train_batch_size=1..256 --gpu l4 -- --size gpt2 --bf16"


def main() -> None:
    """Run everything, write the results and the page."""
    estimates = [_estimate(case) for case in CASES]
    path = RESULTS / "examples.json"
    path.parent.mkdir(exist_ok=True)
    before = {row["script"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    rows = [
        _row(case, found, trace, before.get(case.script))
        for case, (found, trace, _) in zip(CASES, estimates, strict=True)
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")
    blocks = {
        "answer": estimates[0][2],
        "several": _shown(_words(SEVERAL)),
        "largest": _shown(LARGEST.split()),
        "scripts": "\n".join([*_table(rows), *("\n" + shown for _, _, shown in estimates[1:])]),
    }
    text = PAGE.read_text()
    for name, block in blocks.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(\n<!-- {name} end -->)",
            lambda found, block=block: f"{found[1]}\n{block}\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    PAGE.write_text(text)


def _words(case: Case) -> list[str]:
    own = ["--", *case.arguments.split()] if case.arguments else []
    return ["estimate", f"examples/{case.script}", "--gpu", case.gpu, *own]


def _shown(words: Sequence[str]) -> str:
    """A command and what it prints."""
    command = [sys.executable, "-m", "elbowroom", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode == 2:
        raise SystemExit(done.stderr)
    return _indented(words, done.stdout)


def _indented(words: Sequence[str], output: str) -> str:
    shown = f"$ elbowroom {' '.join(words)}\n{output.strip()}"
    print(shown + "\n", flush=True)
    return "\n".join(f"    {line}".rstrip() for line in shown.splitlines())


def _estimate(case: Case) -> tuple[Estimate, Trace, str]:
    """The answer, what it is made of, and how the command shows it."""
    trace = capture_script(ROOT / "examples" / case.script, case.arguments.split(), machine=case.gpu)
    answer = estimate(trace, Machine.of(case.gpu), plans=False)
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as captured:
        console.print(rendered(f"examples/{case.script}", [answer], [trace]))
    return answer, trace, _indented(_words(case), captured.get())


def _row(case: Case, found: Estimate, trace: Trace, before: dict[str, Any] | None) -> dict[str, Any]:
    """The estimate's peaks, those with the workspaces of the CUDA build over stand-ins, and that build's."""
    row = {"peak_allocated_bytes": found.peak_allocated_bytes, "peak_reserved_bytes": found.peak_reserved_bytes}
    head = {"script": case.script, "title": case.title, "arguments": case.arguments, "gpu": case.gpu}
    told = {"estimate": row, "with_its_workspaces": _with_the_rigs_workspaces(trace, Machine.of(case.gpu))}
    return head | told | {"cuda_build": _on_the_rig(case) or (before or {}).get("cuda_build")}


def _with_the_rigs_workspaces(trace: Trace, gpu: Machine) -> dict[str, int]:
    """The events with cuBLAS's first workspace alone, and without those of convolutions."""
    size_bytes = ModelledDevice.of(gpu, CudnnModel(), True).cublas_bytes
    storages = enumerate(trace.storages)
    cublas = [number for number, each in storages if (each.category, each.size_bytes) == ("workspace", size_bytes)]
    left_out = conv_workspaces(trace) | set(cublas[1:])
    kept = [(storage, size) for _, storage, size in trace.events if storage not in left_out]
    done = replay([("alloc", s, size) if size > 0 else ("free", s) for s, size in kept], gpu.allocator)
    return {"peak_allocated_bytes": int(done.allocated_bytes.max()), "peak_reserved_bytes": done.peak_reserved_bytes}


def _on_the_rig(case: Case) -> dict[str, Any] | None:
    rig = os.environ.get("ELBOWROOM_RIG")
    if not rig:
        return None
    gpu = Machine.of(case.gpu)
    environment = {
        **os.environ,
        "PYTHONPATH": os.environ.get("RIG_PYTHONPATH", ""),
        "FAKECUDA_CAPACITY": str(gpu.tiers[0].capacity_bytes),
        "FAKECUDA_CC": str(gpu.compute_capability),
        "FAKECUDA_SMS": str(gpu.multiprocessors),
        "FAKECUDA_BACKING": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        around, script = Path(folder) / "around.py", Path(folder) / case.script
        around.write_text(AROUND)
        script.write_text(
            re.sub(r"^steps = \d+$", "steps = 3", (ROOT / "examples" / case.script).read_text(), flags=re.M)
        )
        words = [f"{rig}/fake_torch.sh", str(around), str(script), *case.arguments.split(), *case.ending.split()]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if MARK not in done.stdout:
        raise SystemExit(done.stderr)
    allocated, reserved, version = done.stdout.rpartition(MARK)[2].split()
    return {"torch": version, "peak_allocated_bytes": int(allocated), "peak_reserved_bytes": int(reserved)}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| script | peak allocated: estimate | with the build's workspaces | CUDA build | "
        "peak reserved: estimate | with the build's workspaces | CUDA build |",
        "|---|" + "---|" * 6,
    ]
    for row in rows:
        cells: list[str] = []
        for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
            real = (row["cuda_build"] or {}).get(name)
            both = (row["estimate"][name], row["with_its_workspaces"][name])
            cells += [f"{format_bytes(ours)}{f' ({(ours - real) / real:+.2%})' if real else ''}" for ours in both]
            cells.append(format_bytes(real) if real else "")
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
