"""Failures: elbowroom's own errors, apart from those of a script, and how to report them."""

from __future__ import annotations

import argparse
import contextlib
import platform
import shlex
import sys
import traceback
from collections.abc import Sequence

from elbowroom.cli import output
from elbowroom.cli.answer_types import ErrorAnswer, ErrorFigures
from elbowroom.errors import CaptureError, ElbowroomError, FormatError, Infeasible
from elbowroom.files.field_rules import printable
from elbowroom.version import installed_version

OWN_FAILURE = 2
"""Exit code if elbowroom itself failed: there is no answer."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in a shell: 128 plus the number of the signal."""
UNEXPECTED = "UnexpectedError"
"""Type, in JSON, of an error that elbowroom has no name for."""


def say(problem: ElbowroomError) -> int:
    """Say on standard error why there is no answer; return the exit code."""
    print(f"elbowroom: {printable(str(problem))}", file=sys.stderr)
    return problem.exit_code


def interrupted() -> int:
    """Say on standard error that Ctrl-C ended the command; return the exit code."""
    print("\nelbowroom: interrupted", file=sys.stderr)
    return INTERRUPTED


def refused(problem: ElbowroomError, words: Sequence[str], arguments: argparse.Namespace | None) -> int:
    """Report an error of elbowroom's tree, in JSON too if that was requested; return the exit code.

    Args:
        problem: the error.
        words: words of the command, after its name.
        arguments: the parsed words; None if they could not be parsed.
    """
    say(problem)
    ours = isinstance(problem, CaptureError) and problem.ours
    if ours:
        print(how_to_report(words), file=sys.stderr)
    infeasible = problem if isinstance(problem, Infeasible) else None
    error = ErrorFigures(
        type=type(problem).__name__,
        message=printable(str(problem)),
        of_elbowroom=ours,
        budget_bytes=infeasible and infeasible.budget_bytes,
        least_feasible_bytes=infeasible and infeasible.least_feasible_bytes,
    )
    write_error(error, problem.exit_code, arguments)
    return problem.exit_code


def write_error(error: ErrorFigures, exit_code: int, arguments: argparse.Namespace | None) -> None:
    """Write an error instead of the JSON answer, if one was requested and can be written."""
    place = None if arguments is None else output.place_of(arguments)
    if arguments is None or place is None:
        return
    with contextlib.suppress(FormatError):
        output.write_answer(ErrorAnswer(verb=arguments.verb, exit_code=exit_code, error=error), place)


def error_of(kind: str, problem: BaseException, *, of_elbowroom: bool) -> ErrorFigures:
    """Describe an exception outside elbowroom's tree, for JSON.

    Args:
        kind: name that stands for its type.
        problem: the exception.
        of_elbowroom: whether elbowroom raised it.
    """
    message = printable("".join(traceback.format_exception_only(problem)).strip())
    return ErrorFigures(
        type=kind, message=message, of_elbowroom=of_elbowroom, budget_bytes=None, least_feasible_bytes=None
    )


def how_to_report(words: Sequence[str]) -> str:
    """Say what to send in a report, in one line.

    Args:
        words: words of the command, after its name.
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}"
    command = shlex.join(["elbowroom", *words])
    versions = f"elbowroom {installed_version()}, torch {installed_version('torch')}"
    return (
        "elbowroom: this is a failure of elbowroom, not of the script; please report it as an issue of elbowroom, with "
        f"the lines above and these: {versions}, {system}; {command}"
    )


def show(problem: BaseException, words: Sequence[str], arguments: argparse.Namespace | None) -> int:
    """Show an unexpected exception, in JSON too if that was requested; return the exit code."""
    traceback.print_exception(problem)
    print(how_to_report(words), file=sys.stderr)
    write_error(error_of(UNEXPECTED, problem, of_elbowroom=True), OWN_FAILURE, arguments)
    return OWN_FAILURE
