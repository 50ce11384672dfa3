"""How verbs answer: one JSON object, or text through rich, which leaves colours out where no terminal reads."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from elbowroom.cli.answer_types import SCHEMAS
from elbowroom.errors import FormatError, UsageError
from elbowroom.files.record_files import ANSWERS

if TYPE_CHECKING:
    from rich.console import Console


WIDE = 120
"""Columns if neither a terminal nor COLUMNS gives a number: wide enough for tables."""


STDOUT = "-"
"""The place that stands for standard output."""


def place_of(arguments: argparse.Namespace) -> str | int | None:
    """Where a command's JSON goes: a path, a descriptor or `STDOUT`; None where it answers in text."""
    given = getattr(arguments, "json", None)
    return STDOUT if given is True else given or None


def write_answer(answer: object, place: str | int) -> None:
    """Write one of `SCHEMAS` as one JSON object, which people can read too. It is the last that a verb writes.

    Args:
        answer: the object, without its schema and version.
        place: as `place_of` gives it.

    Raises:
        FormatError: the file cannot be written.
    """
    text = json.dumps(as_object(answer), indent=2, allow_nan=False)
    if place == STDOUT:
        print(text)
        return
    try:
        with open(place, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise FormatError(f"{place}: cannot be written: {problem.strerror}; name another path") from problem


def check_report(path: str | None) -> None:
    """Refuse the name of a report that has no such form, before any work.

    Raises:
        UsageError: no report has its ending.
    """
    from elbowroom.report import ENDINGS

    if path and not path.endswith(ENDINGS):
        raise UsageError(f"--report: given {path!r}; allowed are names ending in {', '.join(ENDINGS)}; rename it")


def as_object(answer: object) -> dict[str, object]:
    """An answer as a JSON object that begins with its schema and version."""
    schema = SCHEMAS[type(answer)]
    return {"schema": f"{ANSWERS}{schema.name}", "version": schema.version, **_as_json(answer)}


def _as_json(value: Any) -> Any:
    """A record as an object of its fields, a tuple as an array."""
    if is_dataclass(value):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, tuple) and hasattr(type(value), "_asdict"):
        return _as_json(cast("NamedTuple", value)._asdict())
    if isinstance(value, dict):
        return {str(name): _as_json(each) for name, each in value.items()}
    return [_as_json(each) for each in value] if isinstance(value, list | tuple) else value


def keep_stdout() -> int:
    """Keep standard output for the answer alone: what else writes there writes to standard error from now on.

    This holds to the end of the process, for its children too: what a script prints at its exit is its own as well.

    Returns:
        The descriptor of what was standard output.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as standard error: lines come when they are written
    return kept


def console(*, errors: bool = False) -> Console:
    """Standard output, or standard error, as rich writes to it. COLUMNS says how wide it is where no terminal does."""
    from elbowroom.report.screen import PlainConsole

    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() or _columns() else WIDE
    return PlainConsole(stderr=errors, width=width, highlight=False, emoji=False)


def _columns() -> bool:
    """Whether COLUMNS is a width, which rich takes."""
    return os.environ.get("COLUMNS", "").isdigit() and int(os.environ["COLUMNS"]) > 0
