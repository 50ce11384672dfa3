"""Failures of elbowroom's own: told apart from those of a script, and how to report them."""

from __future__ import annotations

import platform
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

OWN_FAILURE = 2
"""Exit code of what failed for a reason of elbowroom's own: there is no answer."""


def how_to_report(words: Sequence[str]) -> str:
    """What to send, in one line.

    Args:
        words: of the command, after its name.
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}"
    command = shlex.join(["elbowroom", *words])
    return (
        "elbowroom: this is a failure of elbowroom, not of the script; please report it as an issue of elbowroom, with "
        f"the lines above and these: elbowroom {_version('elbowroom')}, torch {_version('torch')}, {system}; {command}"
    )


def show(problem: BaseException, words: Sequence[str]) -> int:
    """Show an exception that nobody expected; the exit code."""
    traceback.print_exception(problem)
    print(how_to_report(words), file=sys.stderr)
    return OWN_FAILURE


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
