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
    search = _RecipeSearch(known, before_op, away)
    for storage in storages:
        search.remake(storage, before_op)
    while search.pending:
        op = -heappop(search.pending)
        if known.refused[op - known.first_op] or len(search.chosen) > most_ops:
            return Closure(recipe=(), remade=frozenset(), asked=frozenset(search.asked))
        search.remake_around(op)
    recipe = tuple(sorted(search.chosen))
    return Closure(recipe=recipe, remade=frozenset(search.remade), asked=frozenset(search.asked))


class _RecipeSearch:
    """What a recipe makes so far, and the ops that are still to be looked at, the last one first."""

    def __init__(self, known: History, before_op: int, away: AbstractSet[int]) -> None:
        self._known, self._before_op, self._away = known, before_op, away
        self.remade: dict[int, int] = {}
        self.chosen: set[int] = set()
        self.asked: set[int] = set()
        self.pending: list[int] = []

    def remake(self, storage: int, before: int) -> None:
        """Make a storage again as it is before an op."""
        self.remade[storage] = max(before, self.remade.get(storage, 0))
        for writer in self._known.writers_before(storage, before):
            if writer not in self.chosen:
                self.chosen.add(writer)
                heappush(self.pending, -writer)

    def remake_around(self, op: int) -> None:
        """Make again what an op writes, and of what it reads all that is not there."""
        writes = self._known.writes[op - self._known.first_op]
        for storage in writes:
            self.remake(storage, op + 1)
        for storage in self._known.reads[op - self._known.first_op]:
            if storage not in writes and not self._is_there(storage, op):
                self.remake(storage, op)

    def _is_there(self, storage: int, op: int) -> bool:
        """Tell whether a storage is on the device before the recipe, as it was before an op."""
        known = self._known
        if storage in self.remade or not known.alive(storage, self._before_op):
            return False
        if known.written(storage, op, self._before_op) is not None:
            return False
        self.asked.add(storage)
        return storage not in self._away
