"""Bottom lines: some lines at the end of a terminal, below all that a script and its children write.

Note: [Scroll region]
A terminal can be asked to scroll its upper rows only (DECSTBM, ECMA-48 and the VT100 manual). The script then writes
into these rows as ever: prints, progress bars that go back to the start of their line, and what C code writes. Nothing
of it is caught or changed. The lines below are written in one go: save the cursor, write, restore it. Writes to one
terminal do not mix. The alternative, to catch the script's streams and write them above the lines, spoils progress
bars: they rewrite a line that has no end yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import final

LEAST_ROWS = 8
"""A terminal with fewer rows is left alone."""
SAVE, RESTORE = "\x1b7", "\x1b8"
WHOLE = "\x1b[r"
"""Scroll all rows."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def terminal() -> int | None:
    """Return the descriptor of standard error or output that is a terminal which can do this; None without one."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return None
    return next((each for each in (2, 1) if os.isatty(each)), None)


@final
class BottomLines:
    """Lines at the bottom of a terminal.

    Args:
        descriptor: the terminal. It is duplicated, so a script may close or redirect its own.
        count: number of lines.
    """

    def __init__(self, descriptor: int, count: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._count = count
        self._size: tuple[int, int] | None = None
        self._process = os.getpid()
        self._handled: dict[int, Callable[[int, FrameType | None], None]] = {}
        self._stopped = False

    def open(self) -> None:
        """Make room for the lines. SIGTERM, and Ctrl-Z, give the rows back before they end or stop the process."""
        self._fit()
        wanted = {signal.SIGTERM: self._terminated, signal.SIGTSTP: self._stops}
        with contextlib.suppress(ValueError):  # in another thread than the main one
            for number, handler in wanted.items():
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, handler)
                    self._handled[number] = handler

    def width(self) -> int:
        """Return the columns of the terminal."""
        return os.get_terminal_size(self._descriptor).columns

    def draw(self, lines: Sequence[str]) -> None:
        """Write the lines, at most `count`, after a look at the terminal's size."""
        if os.getpid() != self._process or self._stopped:
            return
        self._fit()
        if self._size is None:
            return
        _, rows = self._size
        first = rows - self._count + 1
        texts = [*lines, *[""] * self._count][: self._count]
        drawn = "".join(f"\x1b[{first + n};1H\x1b[2K{DIM}{text}{PLAIN}" for n, text in enumerate(texts))
        self._write(f"{SAVE}{drawn}{RESTORE}")

    def close(self) -> None:
        """Give the rows back."""
        if os.getpid() != self._process:
            return
        for number, handler in self._handled.items():
            if signal.getsignal(number) == handler:
                signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            self._give_back()
        os.close(self._descriptor)

    def _give_back(self) -> None:
        if self._size is None:
            return
        first = self._size[1] - self._count + 1
        gone = "".join(f"\x1b[{first + n};1H\x1b[2K" for n in range(self._count))
        self._size = None
        self._write(f"{SAVE}{gone}{WHOLE}{RESTORE}")

    def _fit(self) -> None:
        """Set the rows that scroll, where the terminal has another size than before."""
        size = os.get_terminal_size(self._descriptor)
        found = (size.columns, size.lines)
        if found == self._size:
            return
        self._size = None
        whole = f"{SAVE}{WHOLE}{RESTORE}"
        if size.lines < LEAST_ROWS:
            self._write(whole)
            return
        # As many line feeds as lines, and back up: if the cursor stood in their rows, all above has moved up.
        room = "\x1bD" * self._count + f"\x1b[{self._count}A"
        self._write(f"{whole}{room}{SAVE}\x1b[1;{size.lines - self._count}r{RESTORE}")
        self._size = found

    def _write(self, text: str) -> None:
        written = text.encode()
        while written:
            written = written[os.write(self._descriptor, written) :]

    def _stops(self, number: int, _: FrameType | None) -> None:
        """Give the rows back and stop, as Ctrl-Z asks; the next look draws the lines again once the process goes on."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns once the process goes on
        signal.signal(number, self._stops)
        self._stopped = False

    def _terminated(self, number: int, _: FrameType | None) -> None:
        self.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
