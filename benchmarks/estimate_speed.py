"""How long an estimate takes: `python -m benchmarks.estimate_speed [--case NAME] [--rounds N]`.

Each round is a fresh process that imports everything, captures three steps on a virtual device and estimates, as
`elbowroom estimate` does; its wall time and its peak RSS are taken from outside. Two of the cases need transformers,
one torchvision, in the environment that runs this.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.results import RESULTS, ROOT, commit, result_path, write_result

CASES = {
    "resnet152": ("ResNet-152, batch 32, 224 x 224, SGD with momentum, float32; RTX 4090", 10.0),
    "gpt-1b": ("transformer of 1.2 billion parameters, batch 4 x 2048, AdamW, bfloat16; A100 80 GB", 15.0),
    "gpt-7b": ("transformer of 6.7 billion parameters, batch 1 x 2048, AdamW, bfloat16; H200", 60.0),
}
"""What is estimated, and the seconds it may take on two cores."""

LLAMA = {
    "gpt-1b": {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 24, "num_attention_heads": 16},
    "gpt-7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
}
BATCH = {"gpt-1b": 4, "gpt-7b": 1}
MACHINE = {"resnet152": "rtx4090", "gpt-1b": "a100-80gb", "gpt-7b": "h200"}
TOKENS = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[*CASES], help="only this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=[*CASES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(estimated(given.child)))
        return
    load = [round(each, 1) for each in os.getloadavg()]
    cases = {name: measured(name, given.rounds) for name in given.case or CASES}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "torchvision")}
    result = {
        "case": "estimate_speed",
        "versions": {**versions, "python": platform.python_version(), "commit": commit()},
        "computer": {"cores": os.cpu_count(), "load_before": load},
        "cases": cases,
    }
    write_result(result_path(RESULTS, "estimate_speed"), result)


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Wall times and peak RSS of fresh processes."""
    walls: list[float] = []
    answers: list[dict[str, Any]] = []
    for _ in range(rounds):
        began = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.estimate_speed", "--child", name]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        walls.append(round(time.perf_counter() - began, 2))
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    what, allowed_s = CASES[name]
    print(f"{name}: {statistics.median(walls)} s ({min(walls)} to {max(walls)}), at most {allowed_s} s; {answers[-1]}")
    return {"what": what, "allowed_s": allowed_s, "median_s": statistics.median(walls), "wall_s": walls, **answers[-1]}


def estimated(name: str) -> dict[str, Any]:
    """Capture and estimate one case, in this process."""
    from benchmarks.accuracy.child import define_torchvision_ops
    from elbowroom.answers.estimate import estimate
    from elbowroom.capture.virtual import VirtualDevice
    from elbowroom.machine import Machine

    machine = Machine.of(MACHINE[name])
    began = time.perf_counter()
    with VirtualDevice(machine, 3) as device:
        define_torchvision_ops()
        step, parameters = _resnet() if name == "resnet152" else _llama(name)
        while True:
            step()
    captured = time.perf_counter()
    answer = estimate(device.trace(), machine, plans=False)
    return {
        "parameters": parameters,
        "peak_reserved_bytes": answer.peak_reserved_bytes,
        "capture_s": round(captured - began, 2),
        "estimate_s": round(time.perf_counter() - captured, 2),
        "cpu_s": round(sum(os.times()[:2]), 2),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _resnet() -> tuple[Callable[[], None], int]:
    import torch
    import torchvision

    net = torchvision.models.resnet152().to("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images = torch.zeros(32, 3, 224, 224).to("cuda")
    labels = torch.zeros(32, dtype=torch.long).to("cuda")

    def step() -> None:
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(each.numel() for each in net.parameters())


def _llama(name: str) -> tuple[Callable[[], None], int]:
    import torch
    import transformers

    config = transformers.LlamaConfig(vocab_size=32000, **LLAMA[name])
    net: Any = transformers.LlamaForCausalLM(config)
    net = net.to(device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    tokens = torch.zeros(BATCH[name], TOKENS, dtype=torch.long).to("cuda")

    def step() -> None:
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(each.numel() for each in net.parameters())


if __name__ == "__main__":
    main()
