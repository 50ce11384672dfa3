"""Captures that a run keeps for the next start of the same script: which files they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from elbowroom.capture.script import script
from elbowroom.capture.script.order import ScriptOrder
from elbowroom.capture.script.script import ChildProgress, capture_script

SCRIPT = """
import torch
from sizes import WIDTH
width = WIDTH + int(open("more.txt").read())
model = torch.nn.Linear(width, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.zeros(8, width, device="cuda")).sum().backward()
    optimizer.step()
"""
LONG_AGO = 10**9


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (LONG_AGO, LONG_AGO + len(text)))


def test_an_unchanged_script_is_captured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a script with a module and a file that it opens
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path / "cache"))
    for name, text in (("train.py", SCRIPT), ("sizes.py", "WIDTH = 64"), ("more.txt", "1")):
        write(tmp_path / name, text)
    monkeypatch.chdir(tmp_path)
    children: list[ScriptOrder] = []
    real = script._run

    def run(order: ScriptOrder, folder: Path, environment: Mapping[str, str], progress: ChildProgress) -> int:
        children.append(order)
        return real(order, folder, environment, progress)

    monkeypatch.setattr(script, "_run", run)
    first = capture_script("train.py", machine="t4", kept=True)
    assert max(each.size_bytes for each in first.storages if each.category == "parameter") == 8 * 65 * 4
    # when it is captured again, with whatever time limit, no process is started
    assert capture_script("train.py", machine="t4", kept=True) == first
    assert capture_script("train.py", machine="t4", kept=True, timeout_s=77) == first
    assert len(children) == 1
    # but one is where its module has changed, or the file that it opens
    for name, text in (("sizes.py", "WIDTH = 128"), ("more.txt", "10")):
        write(tmp_path / name, text)
        monkeypatch.setattr(script, "_run", interrupted)
        with pytest.raises(InterruptedError):
            capture_script("train.py", machine="t4", kept=True)
        write(tmp_path / name, {"sizes.py": "WIDTH = 64", "more.txt": "1"}[name])
    assert capture_script("train.py", machine="t4", kept=True) == first


def interrupted(*_: object) -> int:
    """Stand for a child that is started."""
    raise InterruptedError
