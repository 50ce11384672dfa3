"""The verbs of the command line and their options, as lines: `python -m tests.cli.list_options` writes them anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from elbowroom.cli import parser_of_all

FILE = Path(__file__).parents[1] / "data" / "cli_options.txt"


def lines() -> list[str]:
    """A line per option: its verb, its names, and what it takes."""
    parser = parser_of_all()
    found = [f"elbowroom {line}" for line in _of(parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                found += [f"elbowroom {verb} {line}" for line in _of(inner)]
    return found


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
