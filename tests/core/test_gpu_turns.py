"""benchmarks.gpu_turns: who holds the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_turns import TURNS, turn

OTHER = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, getattr(fcntl, sys.argv[2]) | fcntl.LOCK_NB)
"""


def other_may(path: Path, how: str) -> bool:
    """Whether another process gets the lock at once."""
    done = subprocess.run([sys.executable, "-c", OTHER, str(path), how], capture_output=True, check=False)
    return done.returncode == 0


def test_others_run_beside_a_turn_unless_it_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    path = tmp_path / "turns"
    monkeypatch.setenv(TURNS, str(path))
    # then
    with turn(alone=False):
        assert other_may(path, "LOCK_SH")
        assert not other_may(path, "LOCK_EX")
    with turn(alone=True):
        assert not other_may(path, "LOCK_SH")
    assert other_may(path, "LOCK_EX")


def test_one_process_by_itself_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURNS, raising=False)
    with turn(alone=True):
        pass
