"""Ctrl-C is one short line and exit code 130, whatever the command was doing; a run says what its steps held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import main, scripts

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "train.py", "--gpu", "a100-40gb"],
        ["plan", "train.py", "--gpu", "a100-40gb"],
        ["largest", "train.py", "--gpu", "a100-40gb", "--vary", "const:BATCH=1..8"],
        ["run", "--budget", "1GiB", "train.py"],
        ["report", "trace.json"],
        ["machine"],
        ["demo"],
    ],
)
def test_an_interrupt_is_one_line_and_its_exit_code(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scripts.Script, "capture", interrupted)
    for name in ("cli.report_verb.load", "cli.machine_verb._here", "demo.main.run"):
        monkeypatch.setattr(f"elbowroom.{name}", interrupted)
    (tmp_path / "train.py").write_text("BATCH = 1\nraise KeyboardInterrupt\n")

    code = main(words)

    assert code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "elbowroom: interrupted"
    assert len(capsys.readouterr().err.splitlines()) < 3


STEPS = """
import torch

net = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    net(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("end", "code"), [("KeyboardInterrupt", 130), ("ValueError('bad data')", 1)])
def test_a_run_that_does_not_end_by_itself_says_what_its_steps_held(
    end: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, figures, report = (tmp_path / name for name in ("train.py", "figures.json", "run.html"))
    script.write_text(f"{STEPS}raise {end}\n")

    words = ["--json", str(figures), "--report", str(report)]
    assert main(["run", "--budget", "1GiB", "--no-check", *words, str(script)]) == code

    said = capsys.readouterr().err
    assert "it fits, nothing is moved (3 steps)" in said  # the last one is not over
    assert ("elbowroom: interrupted" in said) == (code == 130)
    answer = json.loads(figures.read_text())
    assert answer["exit_code"] == code
    assert answer["schema"] == ("elbowroom.answer.run" if code == 130 else "elbowroom.answer.error")
    assert report.exists() == (code == 130)
