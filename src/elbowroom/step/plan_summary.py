"""Plan summary: what a plan does with the saved storages of its trace, in counts and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from elbowroom.plan import Plan
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace
from elbowroom.units import format_bytes, format_ns

LASTING = ("optimizer_state", "gradient")


class StorageShare(NamedTuple):
    """Some storages of a step.

    Attributes:
        what: what is done with them: "kept", "swapped to host", "states swapped to disk", "recomputed".
        storages: number of storages.
        size_bytes: bytes of all of them.
    """

    what: str
    storages: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan in sums.

    Attributes:
        shares: storages by what is done with them: all that autograd saves, and the states and gradients that move.
        saved: number of storages that autograd saves in the step.
        recipe_ops: number of ops that run again.
        recompute_ns: recorded time of these ops.
        algorithms: number of ops that run with another algorithm.
    """

    shares: tuple[StorageShare, ...]
    saved: int
    recipe_ops: int
    recompute_ns: int
    algorithms: int


def decided(trace: Trace, plan: Plan) -> Decided:
    """Sum up a plan of a trace."""
    saved = dict.fromkeys(save.storage for save in last_step(trace).saves)
    what_of = {swap.storage: _swapped(trace, swap.storage, swap.tier) for swap in plan.swaps}
    what_of |= {storage: "recomputed" for each in plan.recomputes for storage in each.storages}
    found: dict[str, list[int]] = {}
    for storage in [*saved, *(s for s in what_of if s not in saved)]:
        found.setdefault(what_of.get(storage, "kept"), []).append(trace.storages[storage].size_bytes)
    order = sorted(found, key=lambda what: (what != "kept", what))
    recipes = [op for each in plan.recomputes for op in each.recipe]
    return Decided(
        shares=tuple(StorageShare(what, len(found[what]), sum(found[what])) for what in order),
        saved=len(saved),
        recipe_ops=len(recipes),
        recompute_ns=sum(trace.ops[op].duration_ns for op in recipes),
        algorithms=len(plan.algorithms),
    )


def _swapped(trace: Trace, storage: int, tier: str) -> str:
    category = trace.storages[storage].category
    lasting = "states " if category in LASTING else "parameters " if category == "parameter" else ""
    return f"{lasting}swapped to {tier}"


def sentences(trace: Trace, plan: Plan) -> Iterator[str]:
    """Yield what a plan does, in words."""
    found = decided(trace, plan)
    parts = [f"{format_bytes(share.size_bytes)} {share.what} ({share.storages})" for share in found.shares]
    yield f"of {found.saved} saved storages: {', '.join(parts) or 'none'}"
    if found.recipe_ops:
        yield f"{found.recipe_ops} ops run again, {format_ns(found.recompute_ns)}"
    if found.algorithms:
        yield f"{found.algorithms} ops run with another algorithm than recorded"
