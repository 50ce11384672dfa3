"""Progress of a verb on standard error: a line with a clock in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from elbowroom.cli import output

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 10.0
"""Seconds between lines if the output is no terminal."""


@contextmanager
def progress(every_s: float = EVERY_S) -> Iterator[Callable[[str], None]]:
    """Show the text last given to the yielded function, and how long the work takes."""
    console = output.console(errors=True)
    with _bar(console) if console.is_terminal else _lines(console, every_s) as say:
        yield say


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[str], None]]:
    """Draw one line ten times a second, so that its clock moves while a capture runs."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda what: shown.update(task, description=what)


@contextmanager
def _lines(console: Console, every_s: float) -> Iterator[Callable[[str], None]]:
    """Write a line now and then; none if the answer is there before the first is due."""
    lines = _Lines(console, every_s)
    lines.start()
    try:
        yield lines.say
    finally:
        lines.stop()


@final
class _Lines:
    """A thread that writes lines about the present work."""

    def __init__(self, console: Console, every_s: float) -> None:
        self._console = console
        self._every_s = every_s
        self._what = "starting"
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def say(self, what: str) -> None:
        self._what = what

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._done.wait(self._every_s):
            line = f"{self._what} ({time.monotonic() - self._began:.0f} s)"
            self._console.print(line, markup=False, soft_wrap=True)
