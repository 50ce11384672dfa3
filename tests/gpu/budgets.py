"""Budgets of the tests on a GPU: what is asked for, or the least that is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import elbowroom as er

Found = TypeVar("Found")


def within_or_least(run: Callable[[int], Found], budget_bytes: int) -> Found:
    """Run within a budget, or within the least one that is named if it is refused: that one is met."""
    try:
        return run(budget_bytes)
    except er.Infeasible as refused:
        least_bytes = refused.least_feasible_bytes
    # no traceback holds the run that was refused by now
    assert least_bytes > budget_bytes
    return run(least_bytes)
