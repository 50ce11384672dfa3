"""Why kinds of steps were refused: what a training of several kinds is told is enough for all of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.units import format_bytes

MORE = 100
"""One part in so many is added to what another kind needs: its steps may not have been steady ones yet."""


@final
class Verdicts:
    """The least budgets of kinds of steps for which none met the one that was given."""

    def __init__(self) -> None:
        self._least_bytes: dict[Hashable, int] = {}

    def refused(self, key: Hashable, problem: Infeasible) -> Infeasible:
        """What to raise, if anything, where steps of this signature were refused: another kind may need more."""
        self._least_bytes[key] = problem.least_feasible_bytes
        others = [least + least // MORE for other, least in self._least_bytes.items() if other != key]
        most = max(others, default=0)
        if most <= problem.least_feasible_bytes:
            return problem
        return Infeasible(
            f"{problem} Another kind of step of this training needs {format_bytes(most)} ({most} bytes): give that.",
            budget_bytes=problem.budget_bytes,
            least_feasible_bytes=most,
            counts_reserved=problem.counts_reserved,
        )
