"""Codec: values to JSON values and back, by type hint: int, str, Literal, X | None, tuples, and records of those.

A tuple of records is a table, {"columns": [field names], "rows": [rows]}, so that the names are written once. A row is
the list of a record's fields in the order they are declared. Inside a row, a tuple of records is only the list of their
rows. A single record inside another is an object.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, NoReturn, cast

from elbowroom.errors import InvalidRecord
from elbowroom.files.field_rules import MAX_INT, is_unicode, shown


class RefusedValue(Exception):
    """A JSON value is not what its hint says. Each level that the error passes adds its field's name to the message."""


class Codec(NamedTuple):
    """The two directions for one type hint; `encode` is None if the value is its own JSON value."""

    encode: Callable[[Any], object] | None
    decode: Callable[[object], Any]


@cache
def codec_of(hint: object) -> Codec:
    """The codec of a field's type hint.

    Raises:
        TypeError: no rule for this hint.
    """
    if hint is int:
        return Codec(None, _decode_int)
    if hint is str:
        return Codec(None, _decode_str)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _literal(arguments)
    if origin is types.UnionType and len(arguments) == 2 and arguments[1] is types.NoneType:
        return _optional(codec_of(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _table(arguments[0]) if _is_record(arguments[0]) else _array(codec_of(arguments[0]))
    if origin is tuple:
        return _row([f"[{index}]" for index in range(len(arguments))], arguments, tuple)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _object(hint)
    raise TypeError(f"no codec for {hint!r}; add one to elbowroom.files.codec")


def encode_object(record: object) -> dict[str, object]:
    """A record as a JSON object of its own: field names to values."""
    return {name: _encoded(codec, getattr(record, name)) for name, codec in _codecs_of(type(record)).items()}


def decode_object(kind: type, value: object) -> object:
    """The record of a JSON object.

    Raises:
        RefusedValue: the object is not what the hints say.
        InvalidRecord: its values contradict each other.
    """
    if type(value) is not dict:
        _refuse(value, "a JSON object")
    content = cast("dict[str, object]", value)
    codecs = _codecs_of(kind)
    _check_names("field", list(content), list(codecs))
    made: dict[str, object] = {}
    for name, codec in codecs.items():
        try:
            made[name] = codec.decode(content[name])
        except RefusedValue as problem:
            raise RefusedValue(f"{name}: {problem}") from None
    return kind(**made)


@cache
def _codecs_of(kind: type) -> dict[str, Codec]:
    return {name: codec_of(hint) for name, hint in _fields_of(kind).items()}


def _is_record(hint: object) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, tuple))


def _fields_of(kind: type) -> dict[str, object]:
    """Names and hints of the fields a record is constructed with, in order."""
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return hints


def _encoded(codec: Codec, value: object) -> object:
    return value if codec.encode is None else codec.encode(value)


def _refuse(given: object, allowed: str) -> NoReturn:
    raise RefusedValue(f"given {shown(given)}; allowed is {allowed}")


def _check_names(what: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise RefusedValue(f"unknown {what} {shown(unknown[0])}; allowed are {', '.join(allowed)}")
    missing = [name for name in allowed if name not in given]
    if missing:
        raise RefusedValue(f"{what} '{missing[0]}' is missing; all of {', '.join(allowed)} must be there")


def _decode_int(value: object) -> int:
    if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
        _refuse(value, "an int of at most 63 bits")
    return value


def _decode_str(value: object) -> str:
    if type(value) is not str or not (value.isascii() or is_unicode(value)):
        _refuse(value, "a string of Unicode text")
    return value


def _literal(names: Sequence[str]) -> Codec:
    known = {name: name for name in names}

    def decode(value: object) -> str:
        if type(value) is not str or value not in known:
            _refuse(value, "one of " + ", ".join(map(repr, names)))
        return known[value]

    return Codec(None, decode)


def _optional(codec: Codec) -> Codec:
    def encode(value: object) -> object:
        return None if value is None else _encoded(codec, value)

    def decode(value: object) -> object:
        return None if value is None else codec.decode(value)

    return Codec(encode if codec.encode else None, decode)


def _object(kind: type) -> Codec:
    def decode(value: object) -> object:
        return decode_object(kind, value)

    return Codec(encode_object, decode)


def _array(codec: Codec) -> Codec:
    def encode(values: Sequence[object]) -> list[object]:
        return [_encoded(codec, value) for value in values]

    def decode(value: object) -> tuple[object, ...]:
        return tuple(_decode_items("item", codec.decode, _a_list(value)))

    return Codec(encode if codec.encode else None, decode)


def _table(kind: type) -> Codec:
    names, row = list(_fields_of(kind)), _record_row(kind)

    def encode(values: Sequence[object]) -> dict[str, object]:
        return {"columns": names, "rows": [_encoded(row, value) for value in values]}

    def decode(value: object) -> tuple[object, ...]:
        if type(value) is not dict:
            _refuse(value, "a table, an object of columns and rows")
        content = cast("dict[str, object]", value)
        _check_names("field", list(content), ["columns", "rows"])
        if content["columns"] != names:
            raise RefusedValue(f"columns: given {shown(content['columns'])}; allowed is exactly {', '.join(names)}")
        return tuple(_decode_items("row", row.decode, _a_list(content["rows"])))

    return Codec(encode, decode)


def _record_row(kind: type) -> Codec:
    hints = _fields_of(kind)
    return _row(list(hints), list(hints.values()), _constructor(kind, list(hints)), attributes=True)


def _in_a_row(hint: object) -> Codec:
    """Return the codec of a field of a row: there a tuple of records has no columns of its own."""
    arguments = typing.get_args(hint)
    if (
        typing.get_origin(hint) is tuple
        and len(arguments) == 2
        and arguments[1] is Ellipsis
        and _is_record(arguments[0])
    ):
        return _array(_record_row(arguments[0]))
    return codec_of(hint)


def _constructor(kind: type, names: Sequence[str]) -> Callable[[list[object]], object]:
    def construct(values: list[object]) -> object:
        return kind(**dict(zip(names, values, strict=True)))

    return construct


def _row(
    names: Sequence[str],
    hints: Sequence[object],
    construct: Callable[[list[object]], object],
    *,
    attributes: bool = False,
) -> Codec:
    codecs = [_in_a_row(hint) for hint in hints]
    columns = list(zip(names, codecs, strict=True))

    def encode(value: Any) -> list[object]:
        values = [getattr(value, name) for name in names] if attributes else value
        return [_encoded(codec, item) for codec, item in zip(codecs, values, strict=True)]

    def decode(value: object) -> object:
        items = _a_list(value)
        if len(items) != len(columns):
            raise RefusedValue(f"given {len(items)} values; allowed is {len(columns)}: {', '.join(names)}")
        made: list[object] = []
        for (name, codec), item in zip(columns, items, strict=True):
            try:
                made.append(codec.decode(item))
            except RefusedValue as problem:
                raise RefusedValue(f"{name}: {problem}") from None
        return construct(made)

    return Codec(encode, decode)


def _a_list(value: object) -> list[object]:
    if type(value) is not list:
        _refuse(value, "a JSON array")
    return cast("list[object]", value)


def _decode_items(what: str, decode: Callable[[object], object], items: Sequence[object]) -> list[object]:
    made: list[object] = []
    for item in items:
        try:
            made.append(decode(item))
        except (RefusedValue, InvalidRecord) as problem:
            raise RefusedValue(f"{what} {len(made)}: {problem}") from None
    return made
