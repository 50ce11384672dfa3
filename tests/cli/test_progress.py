"""What a verb says while it works: a clock that moves in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from elbowroom.cli import progress


def waited(until: Callable[[], bool]) -> bool:
    """Whether something is so before half a minute is over."""
    return any(until() or time.sleep(0.02) for _ in range(1500))


def test_the_clock_moves_while_nothing_new_is_said() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)

    with progress._bar(console) as say:
        say("step 1 of 3")
        assert waited(lambda: "step 1 of 3 0:00:01" in screen.getvalue())


def test_a_pipe_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a clock that is moved by hand: it is waited for three times, and then all is done
    now, waits = [0.0], iter([False, False, True])

    def wait(_: threading.Event, seconds: float | None = None) -> bool:
        now[0] += seconds or 0
        return next(waits)

    written = io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = progress._Lines(Console(file=written, width=80), progress.EVERY_S)
    lines.say("step 1 of 3")
    monkeypatch.setattr(threading.Event, "wait", wait)
    lines._write()

    assert written.getvalue().splitlines() == ["step 1 of 3 (10 s)", "step 1 of 3 (20 s)"]


def test_what_is_quick_says_nothing_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress() as say:
        say("step 1 of 3")

    assert capsys.readouterr() == ("", "")
