"""What the error of a budget says where compiled autograd is why no plan meets it.

Torch's compiled autograd makes code of a backward pass, in pieces that end where a saved tensor is read, each called by
the one before it. So all that was read is held until the pass is over: swaps free memory for what comes before it, and
none within it. Traces show just that, and plans count with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elbowroom.errors import Infeasible

WHY = (
    " The backward pass of this training is compiled (torch's compiled autograd), and holds all that it has read until "
    "it is over: without that, torch._dynamo.config.compiled_autograd = False, swaps free memory within it too, and "
    "less is enough."
)


@contextmanager
def named(is_compiled: bool) -> Iterator[None]:
    """Around planning: if no plan meets the budget and a backward pass was compiled, the error says so."""
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
        said + WHY, budget_bytes=budget_bytes, least_feasible_bytes=least_bytes, counts_reserved=counts_reserved
    )
