"""Lines at the bottom of a terminal: what a script writes above them stays as it is."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import tty
from collections.abc import Iterator

import pytest

from elbowroom.live.bottom_lines import BottomLines, terminal
from tests.core.small_terminal import SmallTerminal

ROWS, COLUMNS = 10, 40


class Screen:
    """A pseudo terminal, and what a person sees of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        tty.setraw(self.theirs)
        os.set_blocking(self.ours, False)
        self.resize(ROWS)
        self.seen = SmallTerminal(COLUMNS, ROWS)

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def says(self, text: str) -> None:
        """What the script writes."""
        os.write(self.theirs, text.replace("\n", "\r\n").encode())

    def rows(self) -> list[str]:
        self.seen.write(self.written())
        return self.seen.screen

    def written(self) -> str:
        found = b""
        while True:
            try:
                found += os.read(self.ours, 65536)
            except BlockingIOError:
                return found.decode()


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    os.close(made.ours)
    os.close(made.theirs)


def test_prints_scroll_above_the_lines(screen: Screen) -> None:
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    lines.draw(["first", "second"])

    screen.says("".join(f"print {n}\n" for n in range(20)))
    lines.draw(["third", "fourth"])

    # 10 rows less 2: the last 7 prints and the row of the cursor
    assert screen.rows() == [*(f"print {n}" for n in range(13, 20)), "", "third", "fourth"]
    assert screen.seen.gone == [f"print {n}" for n in range(13)]
    lines.close()


def test_a_progress_bar_goes_on_in_its_own_line(screen: Screen) -> None:
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    for n in range(12):
        screen.says(f"\r{n}/12 " + "#" * n)
        lines.draw([f"look {n}", "plan"])

    assert screen.rows() == ["11/12 ###########", *[""] * 7, "look 11", "plan"]
    assert (screen.seen.row, screen.seen.column) == (0, 17)
    lines.close()


def test_lines_open_below_a_full_screen_without_covering_it(screen: Screen) -> None:
    # given a screen whose last row has a prompt
    screen.says("".join(f"before {n}\n" for n in range(9)) + "$ ")
    lines = BottomLines(screen.theirs, 2)

    lines.open()
    lines.draw(["one", "two"])
    screen.says("typed\nout\n")

    assert screen.rows() == [*(f"before {n}" for n in range(4, 9)), "$ typed", "out", "", "one", "two"]
    lines.close()


def test_the_rows_are_given_back_at_the_end(screen: Screen) -> None:
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    screen.says("".join(f"print {n}\n" for n in range(9)))
    lines.draw(["one", "two"])

    lines.close()
    screen.says("a\nb\nc\n")

    assert screen.rows() == [*(f"print {n}" for n in range(3, 9)), "a", "b", "c", ""]


def test_a_terminal_of_another_size_gets_its_lines_at_its_end(screen: Screen) -> None:
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    lines.draw(["one", "two"])
    screen.rows()

    screen.resize(ROWS - 1)
    lines.draw(["three", "four"])

    written = screen.written()
    assert f"\x1b[1;{ROWS - 3}r" in written
    assert f"\x1b[{ROWS - 2};1H\x1b[2K\x1b[2mthree" in written
    lines.close()


def test_a_terminal_of_few_rows_is_left_alone(screen: Screen) -> None:
    screen.resize(7)
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    lines.draw(["one", "two"])
    lines.close()

    screen.says("hello\n")

    assert screen.rows()[:2] == ["hello", ""]
    assert not any(screen.rows()[1:])


def test_a_forked_child_draws_nothing(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = BottomLines(screen.theirs, 2)
    lines.open()
    screen.written()

    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        lines.draw(["one", "two"])
        lines.close()

    assert screen.written() == ""
    lines.close()


def test_a_pipe_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "isatty", lambda each: each == 1)
    assert terminal() == 1
    monkeypatch.setattr(os, "isatty", lambda each: False)
    assert terminal() is None


def test_a_terminal_that_can_do_nothing_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda each: True)
    monkeypatch.setenv("TERM", "dumb")
    assert terminal() is None
    monkeypatch.setenv("TERM", "xterm")
    assert terminal() == 2
