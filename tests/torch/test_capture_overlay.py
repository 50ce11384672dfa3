"""What a script writes in an estimate: kept from the user's files, and there for the script itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elbowroom.capture.script import capture_script
from elbowroom.machine import Machine

A100 = Machine.of("a100-40gb")
WALK = Path(__file__).with_name("overlay_walk.py")
STEPS = """
import torch
model = torch.nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    model(torch.randn(8, 1000, device="cuda")).sum().backward()
    optimizer.step()
    saved(step)
"""


def estimated(folder: Path, saving: str, **how: object) -> None:
    """Capture a training that calls `saved(step)`, which is given, after each step, from a folder as working one."""
    script = folder.with_name("train.py")
    script.write_text(f"{saving}\n{STEPS}")
    before = Path.cwd()
    os.chdir(folder)
    try:
        capture_script(script, machine=A100, **how)  # pyright: ignore[reportArgumentType]
    finally:
        os.chdir(before)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None for each in folder.rglob("*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a good checkpoint and a log."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "best.pt").write_bytes(b"good")
    (made / "log.csv").write_text("epoch,loss\n")
    (made / "old").mkdir()
    (made / "old" / "weights.bin").write_bytes(b"old")
    return made


def test_files_of_two_layers_look_as_files_of_one(tmp_path: Path) -> None:
    # when the same random calls on files are made on a folder, and on one like it below an overlay
    walked = [sys.executable, str(WALK), str(tmp_path), "0", "16"]
    done = subprocess.run(walked, capture_output=True, text=True, check=False)

    # then each gave the same, or failed the same way, with the same files to be seen, and none changed below
    assert (done.stdout, done.stderr) == ("", "")


def test_a_checkpoint_is_not_overwritten_and_comes_back_as_it_was_saved(folder: Path) -> None:
    # given a script that saves over the best checkpoint, and reads what it saved
    saving = """
import os
import torch
assert open("best.pt").read() == "good"
def saved(step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "best.pt")
    found = torch.load("best.pt", weights_only=step > 0)
    assert found["step"] == step and found["model"]["weight"].device.type == "cuda"
    assert found["model"]["weight"].stride() == (1000, 1)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    with open("log.csv", "a") as log:
        log.write(f"{step},0\\n")
    assert len(open("log.csv").readlines()) == 2 + step
    assert os.path.getsize("best.pt") < 100_000  # 8 MB of zeros are not written
"""
    before = contents(folder)

    estimated(folder, saving)

    assert contents(folder) == before
