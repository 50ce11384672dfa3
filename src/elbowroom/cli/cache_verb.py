"""`elbowroom cache`: the plans and captures that runs have kept for their next start."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from elbowroom.cli import output
from elbowroom.cli.answer_types import CacheAnswer, KeptPlan
from elbowroom.errors import UsageError
from elbowroom.files.cache_folder import cache_folder
from elbowroom.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from elbowroom.planners.budget.kept_courses import KeptCourse


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("cache", help="the plans and captures that runs keep for their next start")
    parser.add_argument("--clear", action="store_true", help="delete them")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """List what is kept, or delete it."""
    from elbowroom.capture.script.kept_captures import clear_captures, kept_captures
    from elbowroom.planners.budget.kept_courses import clear, kept_courses

    try:
        deleted, gone = (clear(), clear_captures()) if arguments.clear else (0, 0)
        found, captures = kept_courses(), Captures.of(kept_captures())
    except OSError as problem:
        raise UsageError(f"cache: {problem}") from problem
    if arguments.json:
        output.write_answer(_answer(found, captures, deleted + gone), output.STDOUT)
        return 0
    console = output.console()
    if arguments.clear:
        console.print(f"deleted {deleted} plans and {gone} captures in {cache_folder()}")
    elif not found and not captures.count:
        console.print(f"no plans are kept in {cache_folder()}")
    else:
        console.print(_table(found))
        console.print(f"and {captures.count} captures of scripts, {format_bytes(captures.size_bytes)},")
        console.print(f"in {cache_folder()}; `elbowroom cache --clear` deletes them")
    return 0


class Captures(NamedTuple):
    """The captures that are kept: their number, and the bytes of their files."""

    count: int
    size_bytes: int

    @classmethod
    def of(cls, paths: list[Path]) -> Captures:
        """Count the files at some paths."""
        return cls(len(paths), sum(path.stat().st_size for path in paths))


def _answer(found: list[KeptCourse], captures: Captures, deleted: int) -> CacheAnswer:
    return CacheAnswer(
        folder=str(cache_folder()),
        deleted=deleted,
        plans=tuple(map(_kept, found)),
        captures=captures.count,
        captures_bytes=captures.size_bytes,
    )


def _kept(each: KeptCourse) -> KeptPlan:
    return KeptPlan(
        name=each.path.name,
        budget_bytes=each.budget_bytes,
        size_bytes=each.size_bytes,
        used_s=int(each.used_s),
    )


def _table(found: list[KeptCourse]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("plan", "budget", "file", "last used"):
        table.add_column(name, justify="left" if name == "plan" else "right")
    for each in found:
        used = datetime.fromtimestamp(each.used_s).astimezone()
        row = each.path.name.partition("-")[0], format_bytes(each.budget_bytes), format_bytes(each.size_bytes)
        table.add_row(*row, f"{used:%Y-%m-%d %H:%M}")
    return table
