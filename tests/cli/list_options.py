"""The verbs of the command line and their options, as lines: `python -m tests.cli.list_options` writes them anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from elbowroom.cli import parser_of_all

FILE = Path(__file__).parents[1] / "data" / "cli_options.txt"


def lines() -> list[str]:
    """A line per option: its verb, its names, and what it takes."""
    return list(_with_verbs("elbowroom", parser_of_all()))


def _with_verbs(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for line in _of(parser):
        yield f"{name} {line}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from _with_verbs(f"{name} {verb}", inner)


def _of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        names = "/".join(action.option_strings) or action.dest
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            yield names
            continue
        takes = str(action.metavar or action.dest.upper())
        if action.choices:
            takes = "{" + ",".join(map(str, action.choices)) + "}"
        yield f"{names} {takes}" if action.option_strings else f"{names} ({action.nargs or 'one'})"


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{FILE}: written")
