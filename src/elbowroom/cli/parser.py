"""Parser of the command line: an error has a message with the word that was probably meant and the verb's usage."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, final

from elbowroom.errors import UsageError

_OPTION = re.compile(r"--?[A-Za-z]")
_SIZES = ("--budget", "--budgets", "--more")
_NEGATIVE = re.compile(r"-[0-9]")


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
        self.check_verb(words[:1])
        for verb in words[:1]:
            if verb in self._verbs:
                self._verbs[verb].check_verb(words[1:2], f"{verb}: ")
        found, unknown = self.parse_known_args(_joined(words), namespace)
        if unknown:
            verb = self._verbs[found.verb].of_kind(getattr(found, "kind", ""))
            if not verb.are_of_script(unknown, getattr(found, "script", None)):
                verb.refuse(unknown)
            found.script_arguments = (*unknown, *found.script_arguments)
        return found

    def are_of_script(self, unknown: Sequence[str], script: str | None) -> bool:
        """Tell whether words that are no options here are those of the script: each option of them stands in it."""
        if not (self._takes_script_arguments and script and unknown[0].startswith("-")):
            return False
        try:
            text = Path(script).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        options = [word.partition("=")[0] for word in unknown if _OPTION.match(word)]
        return all(f'"{option}"' in text or f"'{option}'" in text for option in options)

    def check_verb(self, words: Sequence[str], where: str = "") -> None:
        """Refuse a word that names no verb of this parser, if it has verbs; options are no verbs.

        Raises:
            UsageError: it is none.
        """
        for word in words if self._verbs else ():
            if word not in self._verbs and not word.startswith("-"):
                allowed = f"allowed is one of {', '.join(self._verbs)}{_meant(word, self._verbs)}"
                raise UsageError(f"{where}given {word!r}; {allowed}")

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
        """Refuse a missing value, or one that is not allowed.

        Raises:
            UsageError: always.
        """
        if self._verbs and message == "the following arguments are required: KIND":
            message = f"given no kind of study; allowed is one of {', '.join(self._verbs)}"
        raise UsageError(f"{message}; `{self.prog} --help` says what is allowed\n{self.format_usage().rstrip()}")


def _joined(words: Sequence[str]) -> list[str]:
    """Return words with a negative size joined to its option, so that it is refused as a size and not as an option.

    >>> _joined(["plan", "--budget", "-3GiB"])
    ['plan', '--budget=-3GiB']
    """
    found = list[str]()
    for word in words:
        own = found[:1] == ["run"] and any(each.endswith(".py") for each in found)  # what follows is the script's
        if not own and found and _NEGATIVE.match(word) and found[-1] in _SIZES:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _meant(word: str, known: Iterable[str]) -> str:
    names = {each.lstrip("-"): each for each in known}
    close = get_close_matches(word.lstrip("-"), list(names), n=1, cutoff=0.65)
    return f"; did you mean {names[close[0]]}?" if close else ""
