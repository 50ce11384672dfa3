"""Search for plans whose reserved bytes are within a budget, shared by planners, `optimal` and runs.

Planners count allocated bytes. What the allocator reserves for them follows from the order and the sizes of all blocks.
No bound of it is known that is easy to plan with. So plans are made for fewer allocated bytes until one is within the
budget, and then for more. Reference: bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result for plans within some allocated bytes.

    Attributes:
        fits: whether the allocator reserves no more than the budget, and compute never waits for the driver.
        over_bytes: reserved bytes beyond the budget, if known.
        least_bytes: the least allocated bytes that can be planned for, if no plan was made; else 0.
        is_enough: whether the search may end.
    """

    fits: bool
    over_bytes: int = 0
    least_bytes: int = 0
    is_enough: bool = False


class Steps(Protocol):
    """Decides which number of allocated bytes is tried next."""

    allowed_bytes: int

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to try."""
        ...

    def more(self) -> None:
        """Try more bytes next: the plans fit."""
        ...

    def less(self, found: Look, *, has_fit: bool) -> None:
        """Try fewer bytes next: the plans do not fit. `has_fit` says whether earlier ones did."""
        ...


def search(steps: Steps, look: Callable[[int], Look], rounds: int, *, first: Look | None = None) -> None:
    """Try plans for one number of allocated bytes after the other; `look` keeps what it finds.

    Args:
        steps: decides which number comes next.
        look: tries plans within a number of allocated bytes.
        rounds: most looks.
        first: result of the first look, if it is known.
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
    """Steps to the fastest plan if the least that can be planned for is known: down, and up again.

    Attributes:
        allowed_bytes: the allocated bytes to try.

    Args:
        budget_bytes: budget of reserved bytes.
        least_bytes: the least allocated bytes that can be planned for.
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
        """Try more next: the last try is within the budget."""
        self._least = self.allowed_bytes + 1
        self.allowed_bytes = (self.allowed_bytes + self._fails) // 2

    def less(self, found: Look, *, has_fit: bool) -> None:
        """Try less next: by half of what is left if a plan was found already, else by the bytes over budget."""
        self._fails, room = self.allowed_bytes, self.allowed_bytes - self._least
        lower = self.allowed_bytes - max(min(found.over_bytes, room // 2), self.allowed_bytes // 16, room // 4, 1)
        self.allowed_bytes = (self._least + self._fails) // 2 if has_fit else max(self._least, lower)


@final
class Descending:
    """Steps down by a twelfth to the first plan that fits. The least that can be planned for shows on the way.

    Attributes:
        allowed_bytes: the allocated bytes to try.
        is_over: whether the search has ended.

    Args:
        budget_bytes: budget of reserved bytes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.allowed_bytes, self.is_over = budget_bytes, False
        self._least = 0

    def more(self) -> None:
        """End the search: the last try is within the budget."""
        self.is_over = True

    def less(self, found: Look, *, has_fit: bool) -> None:  # noqa: ARG002
        """Try less next: the last try is over the budget, or cannot be planned for."""
        self._least = found.least_bytes or self._least
        self.is_over = self.allowed_bytes == self._least
        self.allowed_bytes = max(self._least, self.allowed_bytes - self.allowed_bytes // 12)


def lowest(works: Callable[[int], bool], fails: int, fits: int, near_bytes: int, share: float = 0.0) -> int:
    """Find the least limit in bytes that works, by bisection.

    Args:
        works: tells whether a limit works.
        fails: a limit that does not work.
        fits: a limit that works.
        near_bytes: the answer may be too large by this many bytes,
        share: or by this share of it.
    """
    while fits - fails > max(near_bytes, share * fits):
        middle = (fails + fits) // 2
        fits, fails = (middle, fails) if works(middle) else (fits, middle)
    return fits
