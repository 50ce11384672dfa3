"""Source lines: the line of the user's code that an op comes from: that of the first frame outside torch and elbowroom.

A backward op has the line of the forward op whose autograd node made it. On a virtual device every op needs a line. In
a real run, saves of autograd do, while a step is recorded. So facts of files and lines are cached. No frame is kept.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import final

from elbowroom.notices import inner_folders, is_inside

_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""


@final
class SourceLines:
    """Lines of the user's code, each with a number."""

    def __init__(self) -> None:
        self._number_of: dict[str, int] = {}
        self._inside = inner_folders()
        self._is_inside: dict[str, bool] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._of_node: dict[int, int] = {}
        self._folder = os.path.join(os.getcwd(), "")

    @property
    def texts(self) -> list[str]:
        """Return the lines by number, such as "train.py:41 in attention"."""
        return list(self._number_of)

    def here(self) -> int | None:
        """Return the number of the user's line that called; None if no frame is the user's."""
        frame, known = sys._getframe(1), self._is_inside  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        while True:
            file = frame.f_code.co_filename
            inside = known.get(file)
            if inside is None:
                inside = known[file] = is_inside(file, self._inside)
            if not inside:
                break
            if frame.f_back is None:
                return None
            frame = frame.f_back
        number = self._numbers.get((file, frame.f_lineno))
        return self._new(frame.f_code, frame.f_lineno) if number is None else number

    def of_forward(self, node: int) -> int | None:
        """Return the calling line, and note it for the autograd node that was made last.

        An op without a node comes after that node's own op, whose line stays.
        """
        number = self.here()
        if number is not None:
            self._of_node.setdefault(node, number)
        return number

    def of_backward(self, node: int) -> int | None:
        """Return the line of the forward op that made an autograd node."""
        return self._of_node.get(node)

    def forget_nodes(self) -> None:
        """Forget the autograd nodes of a step that is over."""
        self._of_node.clear()

    def _new(self, code: CodeType, line: int) -> int:
        name = ".".join(part for part in code.co_qualname.split(".") if not part.startswith("<"))
        text = f"{self._short(code.co_filename)}:{line}{f' in {name}' if name else ''}"
        text = text.encode("utf-8", "replace").decode("utf-8")
        number = self._number_of.setdefault(text, len(self._number_of))
        self._numbers[code.co_filename, line] = number
        return number

    def _short(self, file: str) -> str:
        """Shorten a path: from the working folder, from that of installed packages, or with only its own folder."""
        for folder in _INSTALLED:
            after = file.partition(f"{os.sep}{folder}{os.sep}")[2]
            if after:
                return after
        if file.startswith(self._folder):
            return file[len(self._folder) :]
        return os.sep.join(file.split(os.sep)[-2:])
