"""What a process becomes as it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
SCRIPT = f"""
import atexit, os, sys
sys.path.insert(0, {str(SOURCES)!r})
from elbowroom.cli.ending import Ending

ending = Ending()
atexit.register(print, "handler of the script")
if "fork" in sys.argv:
    ending.become([sys.executable, "-c", "print('another program')"])
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
elif "become" in sys.argv:
    ending.become([sys.executable, "-c", "print('another program'); raise SystemExit(5)"])
"""


def ended(*words: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_process_becomes_another_program_after_the_handlers_of_its_script() -> None:
    assert ended("become") == (5, ["handler of the script", "another program"])


def test_without_one_it_ends_as_ever() -> None:
    assert ended() == (0, ["handler of the script"])


def test_a_process_that_was_forked_from_it_does_not() -> None:
    assert ended("fork") == (0, ["handler of the script", "handler of the script", "another program"])
