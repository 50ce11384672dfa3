"""Files of older versions, brought to the newest one: what was added since is put in with the value it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Content = dict[str, object]

CHANGES: Mapping[str, Mapping[int, Callable[[Content], Content]]] = {}
"""By record and version: what leads to the next version. A version that no release wrote has none, and is refused."""


def oldest_of(name: str, newest: int) -> int:
    """The oldest version of a record's file that is read."""
    oldest = newest
    while oldest - 1 in CHANGES.get(name, {}):
        oldest -= 1
    return oldest


def to_newest(name: str, version: int, content: Content) -> Content:
    """The content of a record's file as the newest version would hold it.

    Args:
        name: of the record, such as "plan".
        version: of the file, from `oldest_of` on.
        content: its fields. What does not look like that version is left as it is, to be refused by the reader.
    """
    changes = CHANGES.get(name, {})
    while version in changes:
        content, version = changes[version](content), version + 1
    return content
