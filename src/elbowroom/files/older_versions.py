"""Older versions of files, converted to the newest one: fields that were added since get their default values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Content = dict[str, object]

CHANGES: Mapping[str, Mapping[int, Callable[[Content], Content]]] = {}
"""Conversion to the next version, by record and version. A version that no release wrote has none, and is refused."""


def oldest_of(name: str, newest: int) -> int:
    """Return the oldest version of a record's file that is read."""
    oldest = newest
    while oldest - 1 in CHANGES.get(name, {}):
        oldest -= 1
    return oldest


def to_newest(name: str, version: int, content: Content) -> Content:
    """Convert the content of a record's file to the newest version.

    Args:
        name: name of the record, such as "plan".
        version: version of the file, from `oldest_of` on.
        content: its fields. Content that does not look like that version is left as it is; the reader refuses it.
    """
    changes = CHANGES.get(name, {})
    while version in changes:
        content, version = changes[version](content), version + 1
    return content
