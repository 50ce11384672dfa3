"""Script process: how a child that runs a script is started and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from elbowroom.capture.script import guard
from elbowroom.capture.script.kept_away import surroundings
from elbowroom.capture.script.order import ScriptOrder

_GUARD_S = 20.0


def start(
    order: ScriptOrder, folder: Path, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a child for an order.

    Args:
        order: what it runs.
        folder: the folder in which it answers; it has machine.json and tmp.
        environment: variables that are set for it.
        output: the file that gets what it prints.
    """
    # -P: elbowroom's own imports must not come from the working directory; the child adds the script's folder.
    return subprocess.Popen(
        [sys.executable, "-P", guard.__file__, str(folder), order.argument()],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **surroundings(str(folder), network=order.network), **environment, **_terminal()},
        start_new_session=True,
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """Have the guard end the script and the processes that it started; the guard has its own process group."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(_GUARD_S)
    except subprocess.TimeoutExpired:  # something hangs in the kernel
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _terminal() -> dict[str, str]:
    """Return the variable with the terminal, whose size scripts read (`stty size`) to draw progress bars."""
    with suppress(OSError, ValueError, AttributeError):
        return {guard.TERMINAL: os.ttyname(sys.stdin.fileno())}
    return {}
