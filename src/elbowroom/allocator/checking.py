"""Checks of the allocator's events, and the errors for events that are not allowed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NoReturn, cast

from elbowroom.errors import UsageError
from elbowroom.files.field_rules import MAX_INT, shown

FORMS = (
    "('alloc', key, bytes), ('alloc', key, bytes, stream), ('free', key), ('record_stream', key, stream), "
    "('synchronize',) or ('empty_cache',)"
)
LENGTHS = {"alloc": (3, 4), "free": (2,), "record_stream": (3,), "synchronize": (1,), "empty_cache": (1,)}


def refuse(index: int, given: str, allowed: str, do: str) -> NoReturn:
    """Raise UsageError for the event of an index."""
    raise UsageError(f"allocator event {index}: given {given}; allowed is {allowed}; {do}")


def check_form(event: object, index: int) -> None:
    """Check the name and the length of an event, and that its key can be hashed."""
    given = event
    parts = () if not isinstance(event, tuple | list) else cast("Sequence[object]", event)
    if not parts or len(parts) not in LENGTHS.get(str(parts[0]), ()):
        refuse(index, shown(given), f"one of {FORMS}", "write it as a tuple")
    for key in parts[1:2]:
        if not isinstance(key, Hashable):
            refuse(index, f"key {shown(key)}", "a key that can be hashed", "take a number or a str")


def check_alloc(key: Hashable, size: object, live: Mapping[Hashable, object], index: int) -> None:
    """Check the size of an allocation, and that its key is not in use."""
    if type(size) is not int or not 0 <= size <= MAX_INT:
        refuse(index, f"{shown(size)} bytes", "an int from 0 to 2**63 - 1", "write the bytes requested")
    if live.get(key) is not None:
        do = "free it first, or take another key"
        refuse(index, f"a second alloc of {shown(key)}", "one until it is freed", do)


def check_known(what: str, key: Hashable, live: Mapping[Hashable, object], index: int) -> None:
    """Check that a key was allocated."""
    if key not in live:
        allowed = "a key that was allocated and not freed since"
        refuse(index, f"{what} of {shown(key)}", allowed, "put its alloc before it")


def check_stream(stream: object, index: int) -> None:
    """Check the number of a stream."""
    if type(stream) is not int or stream < 0:
        refuse(index, f"stream {shown(stream)}", "an int from 0", "number the streams; 0 is the default one")
