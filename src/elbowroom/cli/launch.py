"""Launch: run a script as python would: its arguments, import path, exit code and tracebacks."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from elbowroom.capture.script.script_errors import of_elbowroom
from elbowroom.cli.answer_types import ErrorFigures
from elbowroom.cli.failures import error_of, how_to_report, interrupted
from elbowroom.errors import ElbowroomError, UsageError
from elbowroom.files.record_files import why_no_file

SCRIPT = "ScriptError"
"""Type, in JSON, of an error of the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: a path or a module's name, with its arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool

    @property
    def label(self) -> str:
        """Name of the script in answers."""
        return f"-m {self.target}" if self.is_module else self.target

    @property
    def path(self) -> str | None:
        """Path of the script; None if it is a module."""
        return None if self.is_module else self.target

    @property
    def module(self) -> str | None:
        """Dotted name of the module; None if it is a script."""
        return self.target if self.is_module else None

    @classmethod
    def of(cls, words: Sequence[str], *, is_module: bool) -> Command:
        """Split a command line; a "--" before the script, or directly after it, is not the script's.

        So a command line of the other verbs, in which "--" is needed, does for a run too.

        Raises:
            UsageError: there is no script, or it is not there.
        """
        words = words[1:] if words and words[0] == "--" else words
        if not words:
            raise UsageError("run: given no script; allowed is a path, or -m and a module; add it at the end")
        if not is_module and (what := _why_no_script(Path(words[0]))):
            raise UsageError(f"run: given {words[0]!r}, which is {what}; allowed is the path of a script; check it")
        own = words[2:] if len(words) > 1 and words[1] == "--" else words[1:]
        return cls(target=words[0], arguments=tuple(own), is_module=is_module)


def _why_no_script(path: Path) -> str:
    """Say why a path is no script; "" if Python can run it, as it can a folder with a __main__.py."""
    if (path / "__main__.py").is_file():
        return ""
    return why_no_file(path) if path.exists() else "not there"


@dataclass(slots=True, kw_only=True)
class ScriptEnd:
    """How a script ended. It is written while the script runs; the room is set once it was entered.

    Attributes:
        room: the room in which it ran.
        code: the code with which it exited.
        error: the error that ended it; None if it ended by itself. No exception is kept, as its frames hold the
            training.
    """

    room: Any = None
    code: object = 0
    error: ErrorFigures | None = None

    def exit_code(self) -> int:
        """Exit code that python would have; a text that was given to sys.exit goes to standard error, as in python."""
        if self.code is None or isinstance(self.code, int):
            return self.code or 0
        print(self.code, file=sys.stderr)
        return 1


@contextmanager
def as_python_would(command: Command) -> Iterator[ScriptEnd]:
    """Set sys.argv and sys.path for a script; turn its uncaught errors, and Ctrl-C, into an outcome.

    Errors of elbowroom go on: the command line has its own way to show them.
    """
    argv, first = sys.argv, sys.path[0]
    outcome = ScriptEnd()
    sys.argv = [command.target, *command.arguments]
    sys.path[0] = os.getcwd() if command.is_module else str(Path(command.target).resolve().parent)
    try:
        yield outcome
    except ElbowroomError:
        raise
    except KeyboardInterrupt:
        outcome.code = interrupted()
    except Exception as problem:  # noqa: BLE001  whatever the script raises, python would show and exit with 1
        outcome.code, outcome.error = 1, error_of(SCRIPT, problem, of_elbowroom=of_elbowroom(problem))
        shown = problem.with_traceback(of_the_script(problem.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        if outcome.error.of_elbowroom:
            print(how_to_report(argv[1:]), file=sys.stderr)
    finally:
        sys.argv, sys.path[0] = argv, first


def execute(command: Command, outcome: ScriptEnd) -> None:
    """Run a script as __main__. An exit is a regular end, so contexts around the script are left as usual."""
    try:
        if command.is_module:
            runpy.run_module(command.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command.target, run_name="__main__")
    except SystemExit as leaving:
        outcome.code = leaving.code


def of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that led to the script; whole if the script is not in it."""
    ours = trace
    while ours is not None and ours.tb_frame.f_code is not execute.__code__:
        ours = ours.tb_next
    if ours is None:
        return trace
    script = ours.tb_next
    while script is not None and script.tb_frame.f_globals.get("__name__") == "runpy":
        script = script.tb_next
    return script
