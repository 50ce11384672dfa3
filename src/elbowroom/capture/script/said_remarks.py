"""Said remarks: what a script of this package knows that the answer of its capture has to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elbowroom.trace import RemarkKind

Listener = Callable[[RemarkKind, str], None]

_listeners: list[Listener] = []


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Have what is said go to a listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def say(kind: RemarkKind, text: str) -> None:
    """Say something; outside a capture nobody listens."""
    for listener in _listeners:
        listener(kind, text)
