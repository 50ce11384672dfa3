"""Scripts in processes of their own, which know nothing of the settings of whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"

# 8 linear layers of 256 x 256 on rows of 1 KiB: each saves an output of as many
LAYERS = """
import os, sys, time
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(ROWS, 256)
"""


def layers(rows: int) -> str:
    """The beginning of a script, up to its first step."""
    return LAYERS.replace("ROWS", str(rows))


def environment(**own: str) -> dict[str, str]:
    """The variables of a process, with some of its own; no plan is kept."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("ELBOWROOM_")}
    return {
        **known,
        "PYTHONPATH": str(SOURCES),
        "OMP_WAIT_POLICY": "PASSIVE",
        "ELBOWROOM_KEEPS_PLANS": "0",
        **own,
    }


def python(folder: Path, *words: str, **own: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with some variables of its own."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(**own), cwd=folder)
