"""Options that verbs share: means and knobs of planners, and modules."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import cast

from elbowroom.errors import UsageError
from elbowroom.planners import DEFAULT_MEANS, MEANS, Means, means_of


def add_allow(parser: argparse.ArgumentParser) -> None:
    """Add --allow."""
    parser.add_argument(
        "--allow",
        metavar="MEANS",
        help=f"means a plan may use, of {','.join(MEANS)} (default: {','.join(DEFAULT_MEANS)}); algorithms change bits",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --allow, --option, --include and --exclude."""
    add_allow(parser)
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="a knob of the planner; may be repeated"
    )
    parser.add_argument(
        "--include", action="append", metavar="GLOB", help="move only what these modules made, such as layer1.*"
    )
    parser.add_argument("--exclude", action="append", metavar="GLOB", help="keep what these modules made")


def allowed(given: str | None) -> tuple[Means, ...] | None:
    """Return the words of --allow; None if it is not given.

    Raises:
        UsageError: there is no such means.
    """
    if given is None:
        return None
    words = [word.strip() for word in given.split(",") if word.strip()]
    return means_of(cast("list[Means]", words))


def options(given: Sequence[str] | None) -> dict[str, str] | None:
    """Return the words of --option by name; None if it is not given."""
    found: dict[str, str] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--option: given {word!r}; allowed is NAME=VALUE; write for example swapin_ahead=4")
        found[name.strip()] = value.strip()
    return found or None
