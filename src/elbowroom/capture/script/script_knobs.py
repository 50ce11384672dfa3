"""Script knobs: `--vary NAME=A..B`, and `vary` of `elbowroom.largest`: what NAME is in a script, and how to set it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from elbowroom.capture.script.constants import Number, constants_of
from elbowroom.errors import UsageError

Kind = Literal["arg", "env", "const"]
KINDS: dict[Kind, str] = {"arg": "argument", "env": "environment variable", "const": "constant"}
_FORM = re.compile(r"(?:(arg|env|const):)?([^=]+)=(?:(\d+)\.\.(\d+)|(\d+(?:,\d+)+))")
_ALLOWED = "NAME=A..B or NAME=A,B,C with whole numbers, NAME alone or as arg:NAME, env:NAME or const:NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A run of a script with one value.

    Attributes:
        arguments: its words.
        environment: variables to set.
        constants: numbers that replace module-level ones.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Mapping[str, Number] = field(default_factory=dict[str, Number])


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The argument, variable or constant that is varied.

    Attributes:
        kind: what it is in the script.
        name: as the script spells it: "--batch-size", "BATCH_SIZE", or "model.width" of an argument model.width=4.
        at: index among the given words of the one that has its value; None to add it.
        how: message for the user if its kind was found by a search.
        guessed: whether it is a guess that nothing in the script supports.
    """

    kind: Kind
    name: str
    at: int | None = None
    how: str = ""
    guessed: bool = False

    def turned(self, arguments: Sequence[str], value: int) -> Variation:
        """Return the script's words, environment and constants with this value."""
        words = tuple(arguments)
        if self.kind == "env":
            return Variation(arguments=words, environment={self.name: str(value)})
        if self.kind == "const":
            return Variation(arguments=words, constants={self.name: value})
        if self.at is None:
            return Variation(arguments=(*words, self.name, str(value)))
        before, equals, _ = words[self.at].partition("=")
        word = f"{before}={value}" if equals and spelling(before) == spelling(self.name) else str(value)
        return Variation(arguments=(*words[: self.at], word, *words[self.at + 1 :]))

    @property
    def label(self) -> str:
        """Name it in words, such as "the argument --batch-size"."""
        return f"the {KINDS[self.kind]} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The parsed value of `--vary`.

    Attributes:
        kind: what it is in the script; None to find that out.
        name: the name as given.
        least: smallest value.
        most: largest value.
        values: the only values, in rising order; () for all from least to most.
    """

    kind: Kind | None
    name: str
    least: int
    most: int
    values: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> Range:
        """Read NAME=A..B or NAME=A,B,C.

        Raises:
            UsageError: it is not of this form.
        """
        found = _FORM.fullmatch(text.strip())
        values = tuple(sorted({int(each) for each in found[5].split(",")})) if found and found[5] else ()
        least, most = (values[0], values[-1]) if values else map(int, found.group(3, 4)) if found else (1, 0)
        if not found or least > most:
            raise UsageError(
                f"--vary: given {text!r}; allowed is {_ALLOWED}, A at most B; write for example batch_size=1..4096"
            )
        kind: Kind | None = found[1]  # pyright: ignore[reportAssignmentType]
        return cls(kind=kind, name=found[2].strip(), least=least, most=most, values=values)


def find_knob(vary: Range, script: str, arguments: Sequence[str]) -> Knob:
    """Find out what a name is in a script.

    A word that is given after -- comes first. Else the script is read (not run): options that it names as text, its
    constants, and environment variables that it reads or that are set. If nothing is found, an option of this name is
    tried.

    Raises:
        UsageError: it could be more than one of these, or is not of the wanted kind.
    """
    given = _given(vary.name, arguments)
    if given is not None and vary.kind in (None, "arg"):
        return given
    found = [knob for knob in _in_script(vary.name, script) if vary.kind in (None, knob.kind)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        names = ", ".join(f"{knob.kind}:{knob.name.lstrip('-')} ({knob.label})" for knob in found)
        raise UsageError(f"--vary: given {vary.name}, which could be {names}; allowed is one of them; write its prefix")
    return _unseen(vary, script)


def seen_knobs(name: str, script: str, arguments: Sequence[str]) -> list[Knob]:
    """Return what a name is among the given words, or in the script; nothing if it is in neither."""
    given = _given(name, arguments)
    return list(_in_script(name, script)) if given is None else [given]


def given_value(name: str, arguments: Sequence[str]) -> str | None:
    """Return the value that the given words have for a name; None if they have none."""
    given = _given(name, arguments)
    if given is None or given.at is None:
        return None
    word = arguments[given.at]
    return word.partition("=")[2] if spelling(word.partition("=")[0]) == spelling(name) else word


def _unseen(vary: Range, script: str) -> Knob:
    """Take a name that the script does not mention as an option or variable that a library of its reads."""
    if vary.kind == "const":
        known = ", ".join(constants_of(_tree(script))) or "none"
        raise UsageError(
            f"--vary: given const:{vary.name}, and {script} binds no number to it at its top level; allowed are "
            f"{known}; take one of these, or write arg:NAME or env:NAME"
        )
    if vary.kind == "env":
        return Knob(kind="env", name=vary.name)
    name = vary.name if vary.name.startswith("-") else f"--{vary.name}"
    how = f"{script} does not mention {vary.name}: it is tried as the argument {name}"
    return Knob(kind="arg", name=name, how="" if vary.kind else how, guessed=not vary.kind)


def _given(name: str, arguments: Sequence[str]) -> Knob | None:
    """Find the last given word that sets it: --name V, --name=V or name=V."""
    for index in range(len(arguments) - 1, -1, -1):
        option, equals, _ = arguments[index].partition("=")
        if spelling(option) != spelling(name):
            continue
        if equals:
            return Knob(kind="arg", name=option, at=index)
        if option.startswith("-") and index + 1 < len(arguments):
            return Knob(kind="arg", name=option, at=index + 1)
    return None


def _in_script(name: str, script: str) -> Iterator[Knob]:
    """Yield the knobs of this name in the script itself."""
    tree = _tree(script)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for option in sorted(text for text in texts if text.startswith("-") and spelling(text) == spelling(name)):
        yield Knob(kind="arg", name=option, how=f"{name} is the argument {option}")
    if name in texts and (name in os.environ or _asks_environment(tree, name)):
        yield Knob(kind="env", name=name, how=f"{name} is an environment variable")
    constants = constants_of(tree)
    same = [name] if name in constants else [each for each in constants if spelling(each) == spelling(name)]
    for constant in same:
        yield Knob(kind="const", name=constant, how=f"{name} is the constant {constant} = {constants[constant]}")


def _asks_environment(tree: ast.Module, name: str) -> bool:
    """Return whether the script reads the name from os.environ or os.getenv."""
    for node in ast.walk(tree):
        asked: Sequence[ast.expr] = ()
        if isinstance(node, ast.Call):
            asked, of = node.args, node.func
        elif isinstance(node, ast.Subscript):
            asked, of = (node.slice,), node.value
        else:
            continue
        names = any(isinstance(each, ast.Constant) and each.value == name for each in asked)
        if names and re.search(r"environ|getenv", ast.unparse(of)):
            return True
    return False


def _tree(script: str) -> ast.Module:
    try:
        return ast.parse(Path(script).read_bytes(), script)
    except OSError as problem:
        raise UsageError(f"{script}: cannot be read: {problem.strerror}; check the path") from None
    except (SyntaxError, ValueError) as problem:
        raise UsageError(f"{script}: is no Python: {problem}; correct it, or check the path") from None


def spelling(name: str) -> str:
    """Normalise a name: without leading dashes, with underscores for dashes, in one case."""
    return name.lstrip("-").replace("-", "_").lower()
