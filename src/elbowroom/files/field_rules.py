"""Field rules: what the fields of records may hold; an error names the field, the value and what is allowed."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from typing import NoReturn, cast

from elbowroom.errors import InvalidRecord

MAX_INT = 2**63 - 1
_CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 control codes, and the marks that change the direction of the text after them."""
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def refuse(field: str, given: object, allowed: str) -> NoReturn:
    """Raise InvalidRecord for one field.

    Args:
        field: record and field, such as "Op.duration_ns".
        given: the value that is not allowed.
        allowed: the allowed values, as a phrase.
    """
    raise InvalidRecord(f"{field}: given {shown(given)}; allowed is {allowed}")


def shown(value: object) -> str:
    """Return the repr of a value, cut to the length of a message."""
    return _short.repr(value)


def printable(text: str) -> str:
    """Return a text that is safe for a terminal: of control codes only ends of lines and tabs stay."""
    return text if text.isprintable() else _CODES.sub("", text)


def integer(field: str, value: object, least: int = 0, most: int = MAX_INT) -> None:
    """Check for an int, not a bool and not a numpy scalar, within bounds that are both included."""
    if type(value) is not int or not least <= value <= most:
        top = "2**63 - 1" if most == MAX_INT else str(most)
        refuse(field, value, f"an int from {least} to {top}")


def text(field: str, value: object) -> None:
    """Check for a str that can be written as UTF-8."""
    if type(value) is not str or not (value.isascii() or is_unicode(value)):
        refuse(field, value, "a str of Unicode text")


def is_unicode(value: str) -> bool:
    """Return whether a str holds no lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def one_of(field: str, value: object, allowed: Sequence[str]) -> None:
    """Check for one of a few names."""
    if type(value) is not str or value not in allowed:
        refuse(field, value, "one of " + ", ".join(map(repr, allowed)))


def integers(field: str, values: object, least: int = 0, most: int = MAX_INT) -> None:
    """Check for a tuple of ints within bounds."""
    for index, value in enumerate(_a_tuple(field, values, "ints")):
        if type(value) is not int or not least <= value <= most:
            integer(f"{field}[{index}]", value, least, most)


def ascending(field: str, values: tuple[int, ...]) -> None:
    """Check that each value is at least the one before it."""
    for index in range(1, len(values)):
        if values[index] < values[index - 1]:
            refuse(f"{field}[{index}]", values[index], f"at least {values[index - 1]}, the value before it")


def records(field: str, values: object, kind: type) -> None:
    """Check for a tuple of one kind of record."""
    for index, value in enumerate(_a_tuple(field, values, kind.__name__)):
        if type(value) is not kind:
            refuse(f"{field}[{index}]", value, f"an instance of {kind.__name__}")


def tuples(field: str, values: object, length: int) -> None:
    """Check for a tuple of tuples of one length."""
    for index, value in enumerate(_a_tuple(field, values, "tuples")):
        if len(_a_tuple(f"{field}[{index}]", value, f"{length} values")) != length:
            refuse(f"{field}[{index}]", value, f"a tuple of {length} values")


def distinct(field: str, values: Sequence[object]) -> None:
    """Check that no value is there twice."""
    seen: set[object] = set()
    for index, value in enumerate(values):
        if value in seen:
            refuse(f"{field}[{index}]", value, "a value that does not stand before it")
        seen.add(value)


def _a_tuple(field: str, values: object, of_what: str) -> tuple[object, ...]:
    if type(values) is not tuple:
        refuse(field, values, f"a tuple of {of_what}")
    return cast("tuple[object, ...]", values)
