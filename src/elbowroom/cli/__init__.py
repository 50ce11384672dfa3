"""The command `elbowroom`: one module per verb, each with `add(verbs)` and `execute(arguments)`.

Help and version import neither torch nor rich: a verb imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from elbowroom.cli import (
    cache_verb,
    completion,
    demo_verb,
    estimate_verb,
    failures,
    largest_verb,
    launchers,
    machine_verb,
    plan_verb,
    report_verb,
    run_verb,
    scripts,
    study_verb,
    watch_verb,
)
from elbowroom.cli.parser import Parser
from elbowroom.errors import ElbowroomError
from elbowroom.version import installed_version

__all__ = ["main"]

VERBS = (
    estimate_verb,
    largest_verb,
    study_verb,
    plan_verb,
    run_verb,
    watch_verb,
    report_verb,
    machine_verb,
    cache_verb,
    demo_verb,
)

WITH_LAUNCHERS = ("estimate", "largest", "plan")
"""Verbs that take a launcher's command line, such as torchrun's."""
WITH_SCRIPT_ARGUMENTS = (*WITH_LAUNCHERS, "study")
"""Verbs that take a script's own words after --."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, or that of the error, whose message is on standard error.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments: argparse.Namespace | None = None
    try:
        launched = launchers.without_launcher(given, WITH_LAUNCHERS)
        os.environ.update(launched.environment)
        words, script_arguments = scripts.split_at_dashes(launched.words, WITH_SCRIPT_ARGUMENTS)
        arguments = parser_of_all().parsed(words, argparse.Namespace(script_arguments=script_arguments))
        return arguments.execute(arguments)
    except ElbowroomError as problem:
        return failures.refused(problem, given, arguments)
    except KeyboardInterrupt:
        return failures.interrupted()
    except BrokenPipeError:
        # The reader of standard output went away (as `head` does): not an error, and nothing more to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:  # noqa: BLE001  what nobody expected is shown with how to report it
        return failures.show(problem, given, arguments)


def parser_of_all() -> Parser:
    """The parser of the command line with all its verbs."""
    parser = Parser(
        prog="elbowroom",
        description="Training that does not fit in memory, made to fit.",
        epilog="`elbowroom VERB --help` says more about each verb.",
    )
    parser.add_argument("--version", action="version", version=f"elbowroom {installed_version()}")
    completion.add(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add(verbs)
    parser.has_verbs(verbs)
    return parser
