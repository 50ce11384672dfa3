"""Options that verbs have in common for what plans may do: knobs of a planner, and modules."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elbowroom.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --option, --include and --exclude."""
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="a knob of the planner; may be repeated"
    )
    parser.add_argument(
        "--include", action="append", metavar="GLOB", help="move only what these modules made, such as layer1.*"
    )
    parser.add_argument("--exclude", action="append", metavar="GLOB", help="keep what these modules made")


def options(given: Sequence[str] | None) -> dict[str, str] | None:
    """The words of --option by name; None where there are none."""
    found: dict[str, str] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--option: given {word!r}; allowed is NAME=VALUE; write for example swapin_ahead=4")
        found[name.strip()] = value.strip()
    return found or None
