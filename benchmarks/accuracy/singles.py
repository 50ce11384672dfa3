"""Single ops on the rig and on the virtual device, side by side: which are equal, and how the others differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.accuracy.single_ops import cases
from benchmarks.results import ROOT

GPUS = {90: 132, 80: 108, 86: 84, 89: 128}
"""Capabilities that the rig can stand for, each with the multiprocessors of a GPU that has it."""
RUNNER = ROOT / "benchmarks" / "accuracy" / "single_run.py"
Record = dict[str, Any]


def run(rig: Path, path: Path) -> None:
    """Run every case for every capability, and write a record of each as a line of JSON."""
    asked = cases()
    lines: list[str] = []
    for capability, multiprocessors in GPUS.items():
        environment = {
            **os.environ,
            "FAKECUDA_CC": str(capability),
            "FAKECUDA_SMS": str(multiprocessors),
            "FAKECUDA_CAPACITY": str(80 << 30),
            "FAKECUDA_BACKING": "0",
            "FAKECUDNN_WORKSPACE": "0",
        }
        theirs = _answers([str(rig / "fake_torch.sh"), str(RUNNER)], asked, environment, rig)
        mine = _answers(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.accuracy.single_run"], asked, environment, ROOT
        )
        found = [record_of(name, capability, theirs[name], mine[name]) for name in asked]
        lines += [json.dumps(record) for record in found]
        print(f"capability {capability}: {sum(record['equal'] for record in found)} of {len(found)} equal", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def record_of(name: str, capability: int, theirs: Record, mine: Record) -> Record:
    """What a case says: equal only where both ran and did the same."""
    problem = theirs["problem"] and f"rig: {theirs['problem']}"
    problem = problem or (mine["problem"] and f"virtual device: {mine['problem']}")
    equal = not problem and theirs["events"] == mine["events"]
    shown = {} if equal or problem else {"rig": _shown(theirs["events"]), "virtual": _shown(mine["events"])}
    return {
        "id": f"{name} on {capability}",
        "capability": capability,
        "equal": equal,
        "problem": problem,
        "compared": mine["compared"],
        **shown,
    }


def _answers(command: list[str], asked: dict[str, str], environment: dict[str, str], folder: Path) -> Record:
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        subprocess.run(
            [*command, str(answer)], input=json.dumps(asked), env=environment, cwd=folder, text=True, check=True
        )
        return json.loads(answer.read_text())


def _shown(events: list[tuple[str, int, int]]) -> str:
    """As "a0:4096 a1:512 f1": allocations with their bytes, frees."""
    return " ".join(f"{what}{number}" + (f":{size}" if what == "a" else "") for what, number, size in events)
