"""Closure: the fewest ops that rebuild some storages, if some others are not on the device either.

Computes: a recipe. It begins with the ops that write the storages. What one of these reads and what is not there must
be made again too, as it was then. So the ops that wrote it before are added, and so on.
Reference: Jain et al., "Checkmate" (1910.02653), for recomputes that need other recomputes.
Optimal: no recipe from the storages that are there has fewer ops. Cost: linear in the recipe and in what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heappop, heappush

from elbowroom.step.recipes.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """Result of a closure.

    Attributes:
        recipe: the ops, ascending; empty if no ops rebuild the storages.
        remade: the storages that the recipe makes.
        asked: the storages of which it mattered whether they are away.
    """

    recipe: tuple[int, ...]
    remade: frozenset[int]
    asked: frozenset[int]


def closure(
    known: History, storages: Iterable[int], before_op: int, away: AbstractSet[int] = frozenset(), most_ops: int = 2**62
) -> Closure:
    """Return the fewest ops that rebuild storages before op `before_op`.

    Ops are visited from the last to the first. So all later readers of an op's results are known when it is visited.

    Args:
        known: history of the step.
        storages: what is rebuilt.
        before_op: where the recipe runs.
        away: storages that are not on the device then, though the step itself has not freed them.
        most_ops: a recipe with more ops is not looked for.
    """
    remade = dict.fromkeys(storages, before_op)
    chosen: set[int] = set()
    asked: set[int] = set()
    pending: list[int] = []

    def remake(storage: int, before: int) -> None:
        remade[storage] = max(before, remade.get(storage, 0))
        for writer in known.writers_before(storage, before):
            if writer not in chosen:
                chosen.add(writer)
                heappush(pending, -writer)

    def is_there(storage: int, op: int) -> bool:
        if storage in remade or not known.alive(storage, before_op):
            return False
        if known.written(storage, op, before_op) is not None:
            return False
        asked.add(storage)
        return storage not in away

    for storage in tuple(remade):
        remake(storage, before_op)
    while pending:
        op = -heappop(pending)
        if known.refused[op - known.first_op] or len(chosen) > most_ops:
            return Closure(recipe=(), remade=frozenset(), asked=frozenset(asked))
        writes = known.writes[op - known.first_op]
        for storage in writes:
            remake(storage, op + 1)
        for storage in known.reads[op - known.first_op]:
            if storage not in writes and not is_there(storage, op):
                remake(storage, op)
    return Closure(recipe=tuple(sorted(chosen)), remade=frozenset(remade), asked=frozenset(asked))
