"""Options that verbs have in common for what plans may do: knobs of a planner, and modules."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elbowroom.errors import UsageError
from elbowroom.planners import DEFAULT_MEANS, DEFAULT_PLANNER


def add_options(parser: argparse.ArgumentParser, means: str) -> None:
    """Add --allow, where `means` says what its default is, --option, --include and --exclude."""
    parser.add_argument(
        "--allow", metavar="MEANS", help=f"means a plan may use, such as swap,recompute (default: {means})"
    )
    parser.add_argument(
        "--option", action="append", metavar="NAME=VALUE", help="a knob of the planner; may be repeated"
    )
    parser.add_argument(
        "--include", action="append", metavar="GLOB", help="move only what these modules made, such as layer1.*"
    )
    parser.add_argument("--exclude", action="append", metavar="GLOB", help="keep what these modules made")


def allowed(given: str | None) -> list[str] | None:
    """The words of --allow; None where it is not given."""
    return None if given is None else [word.strip() for word in given.split(",") if word.strip()]


def means(given: str | None, planner: str | None) -> Sequence[str] | None:
    """The words of --allow for a verb that plans; without them those of a run, or all of a planner that is named."""
    if given is not None or (planner and planner != DEFAULT_PLANNER):
        return allowed(given)
    return DEFAULT_MEANS


def options(given: Sequence[str] | None) -> dict[str, str] | None:
    """The words of --option by name; None where there are none."""
    found: dict[str, str] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--option: given {word!r}; allowed is NAME=VALUE; write for example swapin_ahead=4")
        found[name.strip()] = value.strip()
    return found or None
