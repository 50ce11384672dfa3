"""Why kinds of steps were refused: a training of several kinds needs a budget that is enough for all of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.units import format_bytes

HEADROOM = 100
"""One part in this many is added to what another kind needs: its steps may not have been steady ones yet."""


@final
class Refusals:
    """The least budgets of kinds of steps for which no plan met the one that was given."""

    def __init__(self) -> None:
        self._least_bytes: dict[Hashable, int] = {}

    def note(self, key: Hashable, least_bytes: int) -> None:
        """Steps of this signature were refused."""
        self._least_bytes[key] = least_bytes

    def others_bytes(self, key: Hashable) -> int:
        """What steps of other signatures need, headroom included; 0 where none were refused."""
        return max((least + least // HEADROOM for other, least in self._least_bytes.items() if other != key), default=0)


def with_others(problem: Infeasible, other_kinds_bytes: int) -> Infeasible:
    """A refusal whose least is enough for another kind of step too."""
    if other_kinds_bytes <= problem.least_feasible_bytes:
        return problem
    return Infeasible(
        f"{problem}\nAnother kind of step of this training needs {format_bytes(other_kinds_bytes)} "
        f"({other_kinds_bytes} bytes). Give that.",
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=other_kinds_bytes,
        counts_reserved=problem.counts_reserved,
    )
