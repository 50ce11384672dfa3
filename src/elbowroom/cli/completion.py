"""`elbowroom --completion bash`: a shell script that completes verbs, options, files and names of GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, final

SHELLS = ("bash", "zsh", "tcsh")


@final
class Completion(argparse.Action):
    """Action that prints the completion of a shell, and ends. shtab and the table of GPUs are loaded only then."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002  argparse calls it with four
        values: str | Sequence[Any] | None,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Print it."""
        import shtab

        for action in _actions(parser):
            _complete(action)
        print(shtab.complete(parser, shell=str(values)))
        parser.exit(0)


def add(parser: argparse.ArgumentParser) -> None:
    """Add --completion to the parser of all verbs."""
    parser.add_argument(
        "--completion",
        choices=SHELLS,
        action=Completion,
        help='print what a shell completes by: eval "$(elbowroom --completion bash)"',
    )


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of its verbs."""
    for action in parser._actions:  # noqa: SLF001  argparse offers no other way to them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb in action.choices.values():
                yield from _actions(verb)


def _complete(action: Any) -> None:
    """Set what completes one action, by the name of its value in the help."""
    import shtab

    from elbowroom.hardware import gpus
    from elbowroom.planners import PLANNERS

    if action.metavar in ("FILE", "script.py [--] [ARGS]") or action.dest == "script":
        action.complete = shtab.FILE
    elif action.metavar == "DIR":
        action.complete = shtab.DIRECTORY
    elif action.dest in ("gpu", "name"):
        action.choices = tuple(gpus.database().gpus)
    elif action.dest == "planner":
        action.choices = tuple(PLANNERS)
