"""Refusals of kinds of steps: what the error of a budget adds to what the planner says.

A training of several kinds of steps needs a budget that is enough for all of them (`Refusals`, `with_others`).

Torch's compiled autograd makes code of a backward pass, in pieces that end where a saved tensor is read, each called by
the one before it. So all that was read is held until the pass is over. Swaps free memory before the pass, and not
within it. Traces show just that, plans count with it, and the error says so (`naming_compiled_backward`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import final

from elbowroom.errors import Infeasible
from elbowroom.units import format_bytes

HEADROOM = 100
"""One part in this many is added to what another kind needs: its steps may not have been steady ones yet."""

COMPILED_BACKWARD = """
The backward pass of this training is compiled (torch's compiled autograd).
It holds all that it has read until it is over.
With torch._dynamo.config.compiled_autograd = False swaps free memory within it too:
less is then enough."""


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


@contextmanager
def naming_compiled_backward(is_compiled: bool) -> Iterator[None]:
    """Context manager around planning: if it raises Infeasible and a backward pass was compiled, the error says so."""
    try:
        yield
    except Infeasible as problem:
        if not is_compiled:
            raise
        said, budget_bytes, least_bytes = str(problem), problem.budget_bytes, problem.least_feasible_bytes
        counts_reserved = problem.counts_reserved
    else:
        return
    raise Infeasible(
        said + COMPILED_BACKWARD,
        budget_bytes=budget_bytes,
        least_feasible_bytes=least_bytes,
        counts_reserved=counts_reserved,
    )
