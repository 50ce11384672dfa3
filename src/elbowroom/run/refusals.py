"""Refusals of kinds of steps: what a run adds to the planner's error that no plan meets the budget.

A training with several kinds of steps needs a budget that is enough for all of them (`Refusals`, `with_others`).

Torch's compiled autograd compiles a backward pass in pieces. A piece ends where a saved tensor is read, and calls the
next one. So all that was read is held until the pass is over: swaps free memory before the pass, not within it. Traces
show this, plans allow for it, and the error says so (`naming_compiled_backward`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.units import format_exact_bytes

HEADROOM = 100
"""1/HEADROOM is added to what another kind needs: its steps may not have been steady ones yet."""

COMPILED_BACKWARD = """
The backward pass of this training is compiled (torch's compiled autograd).
It holds all that it has read until it is over.
With torch._dynamo.config.compiled_autograd = False swaps free memory within it too:
less is then enough."""


@final
class Refusals:
    """Least budgets of the kinds of steps for which no plan met the given one."""

    def __init__(self) -> None:
        self._least_bytes: dict[Hashable, int] = {}

    def note(self, key: Hashable, least_bytes: int) -> None:
        """Note the least budget of a signature whose steps were refused."""
        self._least_bytes[key] = least_bytes

    def others_bytes(self, key: Hashable) -> int:
        """Return the budget that steps of other signatures need, headroom included; 0 if none were refused."""
        return max((least + least // HEADROOM for other, least in self._least_bytes.items() if other != key), default=0)


def with_others(problem: Infeasible, other_kinds_bytes: int) -> Infeasible:
    """Return a refusal whose least budget is enough for another kind of step too."""
    if other_kinds_bytes <= problem.least_feasible_bytes:
        return problem
    needed = format_exact_bytes(other_kinds_bytes)
    return problem.reworded(
        f"{problem}\nAnother kind of step of this training needs {needed}. Give that.",
        least_feasible_bytes=other_kinds_bytes,
    )


@contextmanager
def naming_compiled_backward(is_compiled: bool) -> Iterator[None]:
    """Context manager around planning: if it raises Infeasible and a backward pass was compiled, the error says so."""
    try:
        yield
    except Infeasible as problem:
        if not is_compiled:
            raise
        found = problem.reworded(f"{problem}{COMPILED_BACKWARD}")
    else:
        return
    raise found
