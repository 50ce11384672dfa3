"""Plan turns: of processes that ask for the same plan at a time, one makes it, and the others wait for it.

Equal ranks of a job ask the same. Each would take a core for the same answer. A turn is a lock of the system on a file
in the cache folder. A process that ends in any way gives it up, so a rank that dies holds up no other one. Ranks that
share no folder plan each for themselves, and so does a process that has waited for `MOST_S`, or where there are no such
locks. A refusal is written into the file: those that have waited raise it too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast, final

from elbowroom.errors import Infeasible

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MOST_S = 300.0
"""Most time that a process waits for another one's plan."""
LOOK_S = 0.02
"""Time between two tries to take a turn."""
NAME_LENGTH = 2
"""Letters of the key that name the file: what differs in others only takes turns needlessly."""


@final
class PlanTurn:
    """The turn of a process to make a plan.

    Attributes:
        waited: whether another process had its turn meanwhile.

    Args:
        key: what the plan depends on.
        file: the open file of the lock; None if there is no lock.
        asked_s: when the process asked for its turn, in seconds since 1970.
        waited: as above.
    """

    def __init__(self, key: str, file: int | None = None, *, asked_s: float = 0.0, waited: bool = False) -> None:
        self._key, self._file, self._asked_s, self.waited = key, file, asked_s, waited

    def refusal(self, budget_bytes: int) -> Infeasible | None:
        """Return the refusal of the turn before, if that ended meanwhile, for the same with no less memory."""
        if self._file is None:
            return None
        with suppress(OSError, ValueError, LookupError, TypeError):
            said = cast("dict[str, Any]", json.loads(os.pread(self._file, 1 << 20, 0)))
            is_asked = said["key"] == self._key and budget_bytes <= said["budget_bytes"]
            if is_asked and said["at_s"] >= self._asked_s:
                return Infeasible(
                    str(said["message"]),
                    budget_bytes=budget_bytes,
                    least_feasible_bytes=int(said["least_feasible_bytes"]),
                    counts_reserved=bool(said["counts_reserved"]),
                )
        return None

    def refuses(self, problem: Infeasible, budget_bytes: int) -> None:
        """Write a refusal for those that wait. Best effort."""
        said = {
            "key": self._key,
            "at_s": time.time(),
            "budget_bytes": budget_bytes,
            "message": str(problem),
            "least_feasible_bytes": problem.least_feasible_bytes,
            "counts_reserved": problem.counts_reserved,
        }
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, json.dumps(said).encode(), 0)


@contextmanager
def plan_turn(folder: Path, key: str) -> Generator[PlanTurn]:
    """Context in which no other process has a turn for the same plan.

    Args:
        folder: where the locks lie; it is made.
        key: what the plan depends on, as a text of letters and digits.
    """
    asked_s, file = time.time(), _opened(folder / f"{key[:NAME_LENGTH]}.turn")
    try:
        waited = _taken(file)
        yield PlanTurn(key, None if waited is None else file, asked_s=asked_s, waited=bool(waited))
    finally:
        if file is not None:
            _give_up(file)


def _opened(path: Path) -> int | None:
    if fcntl is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None


def _give_up(file: int) -> None:
    """Give up the lock of a file. A child of a fork meanwhile has the file open too, and closing it is not enough."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _taken(file: int | None) -> bool | None:
    """Take the lock of a file; return whether another process had it. None: it could not be taken."""
    waited, until_s = False, time.monotonic() + MOST_S
    while fcntl is not None and file is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                return None
            waited = True
            time.sleep(LOOK_S)
        except OSError:  # a file system without locks
            return None
        else:
            return waited
    return None
