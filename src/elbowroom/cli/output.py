"""How verbs answer: JSON on standard output, or text through rich, which leaves colours out where no terminal reads."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from elbowroom.errors import FormatError

if TYPE_CHECKING:
    from rich.console import Console


WIDE = 120
"""Columns where neither a terminal nor COLUMNS says how many: wide enough for tables."""


def as_json(answer: object) -> str:
    """An answer as JSON text, readable by people too."""
    return json.dumps(answer, indent=2, allow_nan=False)


def write_json(answer: object, place: str) -> None:
    """Write an answer to a file, or to standard output where the place is "-".

    Raises:
        FormatError: the file cannot be written.
    """
    if place == "-":
        print(as_json(answer))
        return
    try:
        with open(place, "w", encoding="utf-8") as file:
            file.write(as_json(answer) + "\n")
    except OSError as problem:
        raise FormatError(f"{place}: cannot be written: {problem.strerror}; name another path") from problem


def console(*, errors: bool = False) -> Console:
    """Standard output, or standard error, as rich writes to it. COLUMNS says how wide it is where no terminal does."""
    from elbowroom.report.screen import PlainConsole

    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() or _columns() else WIDE
    return PlainConsole(stderr=errors, width=width, highlight=False, emoji=False)


def _columns() -> bool:
    """Whether COLUMNS is a width, which rich takes."""
    return os.environ.get("COLUMNS", "").isdigit() and int(os.environ["COLUMNS"]) > 0
