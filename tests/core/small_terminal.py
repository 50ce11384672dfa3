"""A small terminal: what a person sees of the bytes that programs write, for the sequences that the tests meet."""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b([78DM])")


class SmallTerminal:
    """Rows of characters, a cursor, and the rows that scroll.

    Args:
        columns: its width.
        rows: its height.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.saved = (0, 0)
        self.top, self.bottom = 0, rows - 1
        self.gone: list[str] = []

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = SEQUENCE.match(text, at)
            if found is None:
                assert text[at] != "\x1b", f"an unknown sequence: {text[at : at + 12]!r}"
                self._character(text[at])
                at += 1
                continue
            at = found.end()
            if found[3]:
                self._short(found[3])
            else:
                self._long(found[2], [int(each or 0) for each in found[1].split(";")])

    def _character(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        elif character >= " ":
            if self.column == self.columns:
                self.column = 0
                self._down()
            self.cells[self.row][self.column] = character
            self.column += 1

    def _down(self) -> None:
        if self.row == self.bottom:
            self.gone.append("".join(self.cells.pop(self.top)).rstrip())
            self.cells.insert(self.bottom, [" "] * self.columns)
        else:
            self.row = min(self.row + 1, self.rows - 1)

    def _short(self, name: str) -> None:
        if name == "7":
            self.saved = (self.row, self.column)
        elif name == "8":
            self.row, self.column = self.saved
        elif name == "D":
            self._down()
        else:
            raise AssertionError(name)

    def _long(self, name: str, numbers: list[int]) -> None:
        first = numbers[0]
        if name == "r":
            self.top, self.bottom = (first or 1) - 1, (numbers[1] if len(numbers) > 1 else self.rows) - 1
            self.row = self.column = 0
        elif name == "H":
            self.row, self.column = (first or 1) - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif name == "A":
            self.row = max(self.row - (first or 1), self.top if self.row >= self.top else 0)
        elif name == "K":
            begin = 0 if first == 2 else self.column
            self.cells[self.row][begin:] = [" "] * (self.columns - begin)
        elif name != "m":
            raise AssertionError(name)

    @property
    def screen(self) -> list[str]:
        """The rows, without the spaces at their ends."""
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def written(self) -> list[str]:
        """The rows that have left at the top, and those on the screen, up to the last that is not empty."""
        rows = [*self.gone, *self.screen]
        return rows[: max((n + 1 for n, row in enumerate(rows) if row), default=0)]
