"""Ctrl-C is one short line and exit code 130, whatever the command was doing."""

from __future__ import annotations

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
