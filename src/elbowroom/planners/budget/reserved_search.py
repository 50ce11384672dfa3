"""The search for plans whose reserved bytes are within a budget: one for planners, for `optimal` and for runs.

Planners count allocated bytes. What the allocator reserves for them follows from the order and the sizes of all blocks,
and no bound of it is known that is easy to plan with. So plans are made for fewer allocated bytes until one is within
the budget, and then for more. Reference: bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the allocator reserves for plans within some allocated bytes.

    Attributes:
        fits: no more than the budget, and compute never waits for the driver.
        over_bytes: by how much it is more, where that is known.
        least_bytes: the allocated bytes that can be planned for, where nothing was planned; 0 where plans were made.
        is_enough: whether the search may end.
    """

    fits: bool
    over_bytes: int = 0
    least_bytes: int = 0
    is_enough: bool = False


class Steps(Protocol):
    """Says which number of allocated bytes is looked at next."""

    allowed_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to look at."""
        ...

    def more(self) -> None:
        """The plans that were looked at fit: look at more bytes."""
        ...

    def less(self, found: Look, *, has_fit: bool) -> None:
        """They do not: look at fewer bytes; `has_fit`: others did."""
        ...


def search(steps: Steps, look: Callable[[int], Look], rounds: int, *, first: Look | None = None) -> None:
    """Look at plans for one number of allocated bytes after the other; `look` keeps what it finds.

    Args:
        steps: where to look.
        look: at plans within a number of allocated bytes.
        rounds: looks at most.
        first: the first look, where it was had before.
    """
    has_fit, found = False, first or look(steps.allowed_bytes)
    for _ in range(rounds - 1):
        has_fit |= found.fits
        if found.is_enough:
            return
        if found.fits:
            steps.more()
        else:
            steps.less(found, has_fit=has_fit)
        if steps.is_over:
            return
        found = look(steps.allowed_bytes)


@final
class Narrowing:
    """Steps to the fastest plan, where the least that can be planned for is known: down, and up again.

    Attributes:
        allowed_bytes: to be tried.

    Args:
        budget_bytes: of reserved bytes.
        least_bytes: allocated bytes that can be planned for at least.
        near_bytes: budgets this close count as one.
    """

    def __init__(self, budget_bytes: int, least_bytes: int, near_bytes: int = 0) -> None:
        self.allowed_bytes = budget_bytes
        self._least, self._fails, self._near = least_bytes, budget_bytes + 1, near_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to try."""
        return self._fails - self.allowed_bytes <= self._near or self.allowed_bytes < self._least

    def more(self) -> None:
        """What was tried is within the budget: try more."""
        self._least = self.allowed_bytes + 1
        self.allowed_bytes = (self.allowed_bytes + self._fails) // 2

    def less(self, found: Look, *, has_fit: bool) -> None:
        """What was tried is not: half of what is left, where something was found already, else by what it is over."""
        self._fails, room = self.allowed_bytes, self.allowed_bytes - self._least
        lower = self.allowed_bytes - max(min(found.over_bytes, room // 2), self.allowed_bytes // 16, room // 4, 1)
        self.allowed_bytes = (self._least + self._fails) // 2 if has_fit else max(self._least, lower)


@final
class Descending:
    """Steps to the first plan that fits, where the least that can be planned for shows on the way: down by a twelfth.

    Attributes:
        allowed_bytes: to be tried.
        is_over: whether the least was tried.

    Args:
        budget_bytes: of reserved bytes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.allowed_bytes, self.is_over = budget_bytes, False
        self._least = 0

    def more(self) -> None:
        """What was tried is within the budget: that is enough."""
        self.is_over = True

    def less(self, found: Look, *, has_fit: bool) -> None:  # noqa: ARG002
        """What was tried is not, or cannot be planned for."""
        self._least = found.least_bytes or self._least
        self.is_over = self.allowed_bytes == self._least
        self.allowed_bytes = max(self._least, self.allowed_bytes - self.allowed_bytes // 12)


def lowest(works: Callable[[int], bool], fails: int, fits: int, near_bytes: int, share: float = 0.0) -> int:
    """The least limit in bytes that works, as close as is asked for, by bisection.

    Args:
        works: whether a limit does.
        fails: one that does not.
        fits: one that does.
        near_bytes: the answer may be larger by this many bytes,
        share: or by such a share of it.
    """
    while fits - fails > max(near_bytes, share * fits):
        middle = (fails + fits) // 2
        fits, fails = (middle, fails) if works(middle) else (fits, middle)
    return fits
