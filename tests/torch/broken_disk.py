"""System calls that go wrong on purpose, and what a broken run may leave behind: threads and open files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any


def refusing(real: Callable[..., Any], refused: Callable[..., int | None]) -> Callable[..., Any]:
    """A system call that fails with the errno that `refused` gives for its arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        number = refused(*args, **kwargs)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    return call


def failing(number: int) -> Callable[..., int]:
    """A system call that always fails."""

    def call(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return call


def answering(answer: int) -> Callable[..., int]:
    """A system call that does nothing and says so."""
    return lambda *_: answer


def own_threads() -> set[str]:
    """The threads that tiers have running now, by name and number."""
    return {f"{t.name} {t.ident}" for t in threading.enumerate() if t.name.startswith("elbowroom-")}


def open_descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def until(fact: Callable[[], bool], patience_s: float = 10.0) -> bool:
    """Whether something that ends in another thread comes true in time."""
    deadline = time.monotonic() + patience_s
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.005)
    return fact()
