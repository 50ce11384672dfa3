"""Captures that are kept for the next start of the same script: what they depend on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.capture.script.kept_captures import MOST_KEPT, clear_captures, find, keep, kept_captures
from elbowroom.capture.script.order import ScriptOrder
from elbowroom.capture.script.read_files import ReadFiles, as_they_are
from tests.core.build import chain, machine

ORDER = ScriptOrder(script="train.py", arguments=("--width", "64"), steps=3, constants={})
VARIABLES = {"HOME": "/home/a", "SEED": "1", "SHLVL": "1"}
TRACE = chain([100, 100])


@pytest.fixture(autouse=True)
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the script has read; and a cache folder of the test's own."""
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("1 + 1")
    return tmp_path / "train.py"


def kept(path: Path) -> None:
    keep(ORDER, machine(), VARIABLES, TRACE, list(as_they_are([str(path)])), time.time_ns() + 10**9)


def test_a_capture_is_found_by_what_it_depends_on(read: Path) -> None:
    assert find(ORDER, machine(), VARIABLES) is None
    kept(read)
    assert find(ORDER, machine(), VARIABLES) == TRACE
    # links, and what each terminal sets anew, do not count
    assert find(ORDER, machine(out=1), VARIABLES | {"SHLVL": "2", "SSH_TTY": "/dev/pts/1"}) == TRACE
    assert find(replace(ORDER, timeout_s=5.0), machine(), VARIABLES) == TRACE
    # but these do
    assert find(replace(ORDER, arguments=("--width", "65")), machine(), VARIABLES) is None
    assert find(ORDER, replace(machine(), name="other"), VARIABLES) is None
    assert find(ORDER, machine(), VARIABLES | {"SEED": "2"}) is None


def test_a_capture_counts_until_a_file_changes(read: Path) -> None:
    kept(read)
    read.write_text("1 + 2")
    os.utime(read, (1, 1))
    assert find(ORDER, machine(), VARIABLES) is None
    kept(read)
    assert find(ORDER, machine(), VARIABLES) == TRACE
    read.unlink()
    assert find(ORDER, machine(), VARIABLES) is None


def test_a_file_that_changes_during_the_capture_keeps_nothing(read: Path) -> None:
    keep(ORDER, machine(), VARIABLES, TRACE, list(as_they_are([str(read)])), read.stat().st_mtime_ns)
    assert kept_captures() == []


def test_a_damaged_capture_counts_as_nothing(read: Path) -> None:
    kept(read)
    (path,) = kept_captures()
    path.write_bytes(path.read_bytes()[:-20])
    assert find(ORDER, machine(), VARIABLES) is None


def test_the_captures_used_last_stay(read: Path) -> None:
    for width in range(MOST_KEPT + 2):
        order = replace(ORDER, arguments=(str(width),))
        keep(order, machine(), VARIABLES, TRACE, [], 0)
    assert len(kept_captures()) == MOST_KEPT
    assert clear_captures() == MOST_KEPT
    assert kept_captures() == []


def test_files_that_are_opened_to_read_are_named(tmp_path: Path, read: Path) -> None:
    # given files that are read, written, or of a folder that does not count
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "own.txt").write_text("")
    files = ReadFiles([str(apart)])
    for event in (str(read), str(apart / "own.txt"), str(tmp_path / "gone.txt"), "/proc/self/status"):
        files._hear("open", (event, "r", os.O_RDONLY))
    files._hear("open", (str(tmp_path / "written.txt"), "w", os.O_WRONLY | os.O_CREAT))
    # then those that were read, and the modules of this process, are
    found = files.seen()
    assert found is not None
    named = {path for path, _, _ in found}
    assert str(read) in named
    assert __file__ in named
    assert not named & {str(apart / "own.txt"), str(tmp_path / "gone.txt"), str(tmp_path / "written.txt")}
    assert not [path for path in named if path.startswith("/proc") or path.endswith(".pyc")]
