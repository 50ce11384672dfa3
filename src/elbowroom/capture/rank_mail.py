"""Rank mail: what ranks of an estimated job send each other, as files in a folder that they share.

A rank is captured alone, and computes with tensors that have no numbers. Stages of a pipeline ask each other for shapes
before their first step, though, and a script may send objects. These few bytes are really sent. A rank that waits for
another one names it here; capture/script/companions.py then starts that one, as it runs the script too.

A file has one message: `3-1-0` is the first from rank 3 to rank 1. `3-1-0.wanted` says that rank 1 waits for it, and
`3.ended` why rank 3 sends nothing more. Messages are pickled by the script's own processes, as torch does between real
ranks. The folder is the capture's own and goes with it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import final

from elbowroom.errors import CaptureError

_POLL_S = 0.01
_WANTED, _ENDED = ".wanted", ".ended"
_WAITS = " waits for what rank "


@final
class RankMail:
    """The mail of one rank.

    Args:
        folder: the folder that the ranks share.
        rank: the rank whose mail it is.
        rests: whether it runs only for what it sends.
    """

    def __init__(self, folder: str, rank: int, *, rests: bool = False) -> None:
        self._rests = rests
        self._folder = Path(folder)
        self._rank = rank
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def send(self, rank: int, content: bytes) -> None:
        """Send a message to a rank; it waits there until it is received, if it ever is."""
        name = f"{self._rank}-{rank}-{self._sent[rank]}"
        self._sent[rank] += 1
        _write(self._folder / name, content)

    def receive(self, rank: int) -> bytes:
        """Return the next message of a rank; wait for it.

        Raises:
            CaptureError: that rank has ended and did not send it.
        """
        path = self._folder / f"{rank}-{self._rank}-{self._received[rank]}"
        wanted, ended = path.with_name(path.name + _WANTED), self._folder / f"{rank}{_ENDED}"
        if not path.exists():
            _write(wanted, b"")
        while not path.exists():
            if ended.exists() and not path.exists():
                why = ended.read_text("utf-8")
                if _WAITS in why:  # one that waited for others itself says which one was the first
                    raise CaptureError(why)
                raise CaptureError(
                    f"rank {self._rank}{_WAITS}{rank} sends, and that one ended before: {why}; allowed are jobs in "
                    f"which each receive has its send; estimate that rank by itself, with --rank {rank}"
                )
            time.sleep(_POLL_S)
        wanted.unlink(missing_ok=True)
        self._received[rank] += 1
        return path.read_bytes()

    def step_ended(self) -> None:
        """Wait until another rank waits for this one, if it runs only for what it sends."""
        while self._rests and not list(self._folder.glob(f"{self._rank}-*{_WANTED}")):
            time.sleep(_POLL_S)


def wanted_ranks(folder: Path) -> set[int]:
    """Return the ranks for which others wait."""
    return {int(path.name.partition("-")[0]) for path in folder.glob(f"*{_WANTED}")}


def note_end(folder: Path, rank: int, why: str) -> None:
    """Note that a rank sends nothing more."""
    _write(folder / f"{rank}{_ENDED}", why.encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, as another process may be waiting for it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
