"""How verbs write: as wide as they are asked to, and without codes that names would send to the terminal."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from elbowroom.cli import main, output
from elbowroom.report import report
from tests.core.report_case import chain

HOSTILE = "net\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("80", 80), ("200", 200), ("wide", 120), ("0", 120)])
def test_what_is_piped_is_as_wide_as_columns_says(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout", io.StringIO())

    assert output.console().width == width


def test_names_of_a_trace_send_no_codes_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain(name=HOSTILE).save(tmp_path / "trace.json")

    assert main(["report", str(tmp_path / "trace.json")]) == 0

    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\x9b\u202e")
    assert "]0;owned[31m2J" in out
    assert not set(report(chain(name=HOSTILE))) & set("\x1b\x07\x9b\u202e")


def test_messages_send_no_codes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "no\x1b[2Jwhere.json"]) == 2

    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "words",
    [
        ["report", "PATH.json"],
        ["estimate", "PATH.json", "--gpu", "t4"],
        ["estimate", "PATH.py", "--gpu", "t4"],
        ["plan", "PATH.json", "--gpu", "t4"],
        ["largest", "PATH.py", "--vary", "a=1..2"],
        ["run", "PATH.py"],
        ["run", "--plan", "PATH.json", "train.py"],
        ["machine", "PATH.toml"],
    ],
)
@pytest.mark.parametrize(("kind", "said"), [("pipe", "a named pipe"), ("folder", "a folder")])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_an_error_at_once(
    words: list[str],
    kind: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for ending in ("json", "py", "toml"):
        path = tmp_path / f"{kind}.{ending}"
        os.mkfifo(path) if kind == "pipe" else path.mkdir()

    assert main([word.replace("PATH", kind) for word in words]) == 2

    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"{said}; allowed is" in err


def test_a_pipe_that_is_open_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    chain(name="net").save(tmp_path / "trace.json")
    written = threading.Thread(target=lambda: os.write(writing, (tmp_path / "trace.json").read_bytes()))
    written.start()
    written.join(10)  # smaller than a pipe holds
    os.close(writing)

    assert main(["report", f"/dev/fd/{reading}"]) == 0
    os.close(reading)


def test_colours_of_our_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.text import Text

    from elbowroom.report.screen import PlainConsole

    console = PlainConsole(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)
    with console.capture() as captured:
        console.print(Text("red \x1b[2J", style="red"))

    assert captured.get() == "\x1b[31mred [2J\x1b[0m\n"
