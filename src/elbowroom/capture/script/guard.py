"""Guard: the parent of an estimated script, which ends the script's processes and removes its files.

`python -P guard.py FOLDER ORDER` forks. The child runs the script (child.py). This process waits for the script's end,
or until its standard input is closed. That happens even if the process that started it is killed. Then it ends every
process that came of the script. On Linux these include processes of other sessions, as the guard adopts orphans. If its
starter is gone, it also removes the folder. It imports nothing of elbowroom, so it starts fast and stays small.

It reads END from standard input when the time is over. It writes to FOLDER/code how the script's process ended, once no
process is left.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

END = b"e"
TERMINAL = "ELBOWROOM_TERMINAL"
"""Variable with the path of the terminal from which an estimate was started, if any."""
OVER = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + (7 if hasattr(signal, "SIGRTMIN") else 0)
"""Signal for a script's process that its time is over; scripts do not use it."""

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of prctl
_WAIT_S = 10.0  # for killed processes to be gone


def main(folder: str, order: str) -> None:
    """Run the script in a process of its own, and clean up after it."""
    _prctl(_SUBREAPER, 1)
    wake, awake = os.pipe()
    os.set_blocking(awake, False)
    guard, child = os.getpid(), os.fork()
    if not child:
        os.close(wake)
        os.close(awake)
        _become_script(guard)
        from elbowroom.capture.script.child import main as run

        run(folder, order, OVER)
        os._exit(0)  # do not wait for threads and workers that the script left behind
    _prctl(_DEATH_SIGNAL, signal.SIGTERM)
    signal.set_wakeup_fd(awake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _noted)
    alone, code = _watch(child, wake)
    _end_all(child)
    if alone:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        with open(f"{folder}/code", "w", encoding="ascii") as file:
            file.write(str(code))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the bytes on the wakeup pipe say what to do."""


def _become_script(guard: int) -> None:
    os.setpgid(0, 0)
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [OVER])  # until there is a handler
    _take_input()


def _take_input() -> None:
    """Make standard input empty, so that no script waits for keys; a terminal still gives its size."""
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  it stays open
    terminal = os.environ.pop(TERMINAL, os.devnull)
    try:
        shown = os.open(terminal, (os.O_RDONLY if terminal == os.devnull else os.O_WRONLY) | os.O_NOCTTY)
    except OSError:
        shown = os.open(os.devnull, os.O_RDONLY)
    os.dup2(shown, 0)
    os.close(shown)


def _watch(child: int, wake: int) -> tuple[bool, int]:
    """Wait for the script's end; return whether the starter is gone, and the exit code."""
    inputs = [0, wake]
    while True:
        for ready in select.select(inputs, [], [])[0]:
            said = os.read(ready, 64)
            if ready == 0 and not said:
                return True, -signal.SIGKILL
            if ready == 0 and said == END:
                with suppress(ProcessLookupError):
                    os.kill(child, OVER)
            if ready == wake and set(said) - {signal.SIGCHLD}:
                return True, -signal.SIGTERM
        code = _reaped(child)
        if code is not None:
            return False, code


def _reaped(child: int) -> int | None:
    """Reap every process that has ended; return the exit code of the script's once it has ended."""
    code = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def _end_all(child: int) -> None:
    """Kill the processes that came of the script, until none is left or the rest cannot be killed."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        for pid in _descendants():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _descendants() -> set[int]:
    """Return every process below this one (on Linux)."""
    parents = dict(_parents())
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                yield int(name), int(file.read().rpartition(")")[2].split()[1])


def _prctl(what: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
