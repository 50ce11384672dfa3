"""Watch: progress messages of a search, its time limit, and what is known if it ends early."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from elbowroom.errors import TimeOver


def silent(_: str) -> None:
    """Say nothing."""


@final
class Watch:
    """Observer of one search that ends it when its time is over.

    When the time is over or Ctrl-C is pressed, a search ends with its best result so far. It notes in
    `early` what it did not try. Without a watch, Ctrl-C goes on to the caller.

    Args:
        say: called with a text about the present work.
        limit_s: seconds that the search may take in all; None for any time.
        clock: returns a time in seconds.

    Attributes:
        say: the function that was given.
        early: what is known and what was not tried, if the search ended early; else "".
    """

    def __init__(
        self,
        say: Callable[[str], None] = silent,
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.say = say
        self.early = ""
        self._limit_s = limit_s
        self._clock = clock
        self._until = None if limit_s is None else clock() + limit_s

    def left_s(self, most: float = float("inf")) -> float:
        """Return the seconds that are left, at most `most`.

        Raises:
            TimeOver: no time is left.
        """
        if self._until is None:
            return most
        left = self._until - self._clock()
        if left <= 0:
            raise self.over()
        return min(most, left)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._until is not None and self._clock() >= self._until

    def over(self) -> TimeOver:
        """Make the error that ends a search whose time is over."""
        return TimeOver(
            f"the time limit of {self._limit_s:g} s was reached before there was an answer; allowed is a longer one "
            "(--timeout)"
        )

    def ends_early(self, problem: BaseException, known: str) -> None:
        """Note that a search ends early, and what is known."""
        why = "interrupted" if isinstance(problem, KeyboardInterrupt) else f"stopped after {self._limit_s:g} s"
        self.early = f"{why}: {known}"


ENDS: tuple[type[BaseException], ...] = (TimeOver, KeyboardInterrupt)
"""Exceptions that end a watched search early."""
