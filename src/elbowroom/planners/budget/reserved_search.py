"""The search for plans whose reserved bytes are within a budget: one for planners, for `optimal` and for runs.

Planners count allocated bytes. What the allocator reserves for them follows from the order and the sizes of all blocks,
and no bound of it is known that is easy to plan with. So plans are made for fewer allocated bytes until one is within
the budget, and then for more. Reference: bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the allocator reserves for plans within some allocated bytes.

    Attributes:
        fits: no more than the budget, and compute never waits for the driver.
        over_bytes: by how much it is more, where that is known.
        is_enough: whether the search may end.
    """

    fits: bool
    over_bytes: int = 0
    is_enough: bool = False


def search(
    budget_bytes: int,
    least_bytes: int,
    look: Callable[[int], Look],
    rounds: int,
    *,
    near_bytes: int = 0,
    first: Look | None = None,
) -> None:
    """Look at plans for one number of allocated bytes after the other; `look` keeps what it finds.

    Args:
        budget_bytes: of reserved bytes; as many allocated ones are looked at first.
        least_bytes: allocated bytes that can be planned for at least.
        look: at plans within a number of allocated bytes.
        rounds: looks at most.
        near_bytes: two numbers of allocated bytes this close are not told apart.
        first: the first look, where it was had before.
    """
    narrowing, has_fit, found = Narrowing(budget_bytes, least_bytes, near_bytes), False, first or look(budget_bytes)
    for _ in range(rounds - 1):
        has_fit |= found.fits
        if found.is_enough:
            return
        if found.fits:
            narrowing.more()
        else:
            narrowing.less(is_found=has_fit, over_bytes=found.over_bytes)
        if narrowing.is_over:
            return
        found = look(narrowing.allowed_bytes)


@final
class Narrowing:
    """Which budget of allocated bytes to try next, so that the reserved ones are within the budget.

    Attributes:
        allowed_bytes: to be tried.

    Args:
        budget_bytes: of reserved bytes.
        least_bytes: allocated bytes that can be planned for at least.
        near_bytes: budgets that are so close are not told apart.
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

    def less(self, *, is_found: bool, over_bytes: int = 0) -> None:
        """What was tried is not: half of what is left, where something was found already, else by what it is over."""
        self._fails, room = self.allowed_bytes, self.allowed_bytes - self._least
        lower = self.allowed_bytes - max(min(over_bytes, room // 2), self.allowed_bytes // 16, room // 4, 1)
        self.allowed_bytes = (self._least + self._fails) // 2 if is_found else max(self._least, lower)


def lowest(works: Callable[[int], bool], fails: int, fits: int, near_bytes: int, share: float = 0.0) -> int:
    """The least limit in bytes that works, as close as is asked for, by bisection.

    Args:
        works: whether a limit does.
        fails: one that does not.
        fits: one that does.
        near_bytes: the answer may be larger by so many bytes,
        share: or by such a share of it.
    """
    while fits - fails > max(near_bytes, share * fits):
        middle = (fails + fits) // 2
        fits, fails = (middle, fails) if works(middle) else (fits, middle)
    return fits
