"""Parser of the command line: an error has a message with the word that was probably meant and the verb's usage."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, final

from elbowroom.errors import UsageError


@final
class Parser(argparse.ArgumentParser):
    """An argument parser that raises errors with the word that was probably meant.

    Args:
        takes_script_arguments: whether the words after -- are those of the user's script.
        options: options of `argparse.ArgumentParser`.
    """

    def __init__(self, *, takes_script_arguments: bool = False, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._takes_script_arguments = takes_script_arguments
        self._verbs: dict[str, Parser] = {}

    def has_verbs(self, verbs: Any) -> None:
        """Take the parsers of verbs, whose names are offered as corrections."""
        self._verbs = verbs.choices

    def parsed(self, words: Sequence[str], namespace: argparse.Namespace) -> argparse.Namespace:
        """Parse a command line.

        Raises:
            UsageError: a word of it is not allowed.
        """
        if words and not words[0].startswith("-") and words[0] not in self._verbs:
            raise UsageError(
                f"given {words[0]!r}; allowed is one of {', '.join(self._verbs)}{_meant(words[0], self._verbs)}"
            )
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._verbs[found.verb].of_kind(getattr(found, "kind", "")).refuse(unknown)
        return found

    def of_kind(self, kind: str) -> Parser:
        """Return the parser of a verb of this verb; this one if it has no such verb."""
        return self._verbs.get(kind, self)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse the first unknown word, with the word that was probably meant.

        Raises:
            UsageError: always.
        """
        option = unknown[0].partition("=")[0]
        known = [each for action in self._actions for each in action.option_strings if each.startswith("--")]
        own = f" The script's own arguments follow after --, as in -- {' '.join(unknown)}"
        raise UsageError(
            f"given {option!r}, which is no option here; allowed are those that `{self.prog} --help` lists"
            f"{_meant(option, known) or '.'}{own if self._takes_script_arguments else ''}"
            f"\n{self.format_usage().rstrip()}"
        )

    def error(self, message: str) -> NoReturn:
        """Refuse a missing value, or one that is not allowed."""
        raise UsageError(f"{message}; `{self.prog} --help` says what is allowed\n{self.format_usage().rstrip()}")


def _meant(word: str, known: Iterable[str]) -> str:
    names = {each.lstrip("-"): each for each in known}
    close = get_close_matches(word.lstrip("-"), list(names), n=1, cutoff=0.65)
    return f"; did you mean {names[close[0]]}?" if close else ""
