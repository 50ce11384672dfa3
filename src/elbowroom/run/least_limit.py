"""Least limit: what a process becomes whose training a hard limit has ended, to say which limit is enough.

A refusal of a request for memory knows that request alone. A capture of the script knows what its steps need, and takes
about 400 MiB. Where a limit leaves less next to the training, none is made before it. Once the training has ended, all
of the limit is free. But Python gives little of it back, so another program takes the place of the process: this
module. It captures the script as run/beforehand.py does, without its output, and says the limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

from elbowroom.machine import Machine
from elbowroom.run.beforehand import PATIENCE_S, Question, answer
from elbowroom.run.hard_room import UnsureLimit
from elbowroom.units import format_exact_bytes

LOOKS = (
    "elbowroom: that limit is enough for the last request alone. A capture of the script without its numbers looks for "
    f"what its steps need, for {PATIENCE_S:.0f} s at most; Ctrl-C ends it."
)


def command_of(question: Question, machine: Machine, limit: UnsureLimit, exit_code: int) -> list[str]:
    """Return the command that looks for the limit and ends with an exit code. Its files go with it."""
    folder = Path(tempfile.mkdtemp(prefix="elbowroom-limit-"))
    machine.save(folder / "machine.json")
    asked = {"question": asdict(question), "limit": limit._asdict(), "exit_code": exit_code}
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    return [sys.executable, "-P", "-m", "elbowroom.run.least_limit", str(folder)]


def said(limit: UnsureLimit, least_bytes: int, why: str) -> str:
    """Return what to say of a capture.

    Args:
        limit: the limit that the refusal named.
        least_bytes: the least budget that steps need, as the capture says; 0 if it does not say.
        why: the reason that it does not.
    """
    if not least_bytes:
        return f"elbowroom: no capture says what the steps need: {why}."
    needed_bytes = max(limit.named_bytes, least_bytes + limit.besides_bytes)
    return (
        f"elbowroom: a capture of the script says that its steps need {format_exact_bytes(least_bytes)} besides what "
        f"the process holds.\nTry a limit of at least {format_exact_bytes(needed_bytes)}, or a smaller batch."
    )


def main(folder: str) -> NoReturn:
    """Answer what was asked in a folder, and end the process."""
    with open(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as user:
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        asked = json.loads(Path(folder, "asked.json").read_text("utf-8"))
        machine = Machine.load(Path(folder, "machine.json"))
        shutil.rmtree(folder, ignore_errors=True)
        print(LOOKS, file=user, flush=True)
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        code, limit = int(asked["exit_code"]), UnsureLimit(**asked["limit"])
        try:
            verdict = answer(Question(**asked["question"]), machine)
            line = said(limit, verdict.least_feasible_bytes, verdict.why)
        except KeyboardInterrupt:
            code, line = 128 + signal.SIGINT, "\nelbowroom: interrupted"
        except Exception as problem:  # noqa: BLE001  whatever fails here is no answer
            line = said(limit, 0, str(problem) or repr(problem))
        print(line, file=user, flush=True)
    os._exit(code)


def _late(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"it took more than {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1])
