"""closing: recomputes for any set of dropped storages; one recipe may make again what another one drops.

Computes: for a set of dropped storages, recipes that can be carried out together. Storages are taken in the order of
their first reads. Each that is not there by then gets the recipe that is shortest with what is there. What such a
recipe makes on its way stays if it is dropped too, is read soon, and has room until then. Else it is made once more.
Reference: Jain et al., "Checkmate" (1910.02653), for any storage by any recipe; Kirisame et al., "Dynamic Tensor
Rematerialization" (ICLR 2021), for recipes closed on demand.
Optimal: each recipe by itself. Ignores: memory that recipes hold while they run; the planner weighs it.
Cost: linear in the storages, and in the recipes whose surroundings were not met before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, combinations, product
from typing import NamedTuple, final

from elbowroom.plan import Recompute
from elbowroom.planners.problem import Problem
from elbowroom.step.last_step import Ints, listed
from elbowroom.step.rebuilds import Rebuild, rebuild_of
from elbowroom.step.recipes import Closure, RecomputeOption, closure, history, not_droppable, option_of

ANY_OPS = 2**62
"""Number of ops up to which all that recipes make on their way stays."""


class ClosedRecipe(NamedTuple):
    """A recompute as an option, and what it does to the step."""

    option: RecomputeOption
    rebuild: Rebuild


@final
class ClosedRecipes:
    """Recipes of the storages that a problem lets a plan drop.

    Args:
        problem: the problem; its budget is ignored.
    """

    def __init__(self, problem: Problem) -> None:
        step = problem.step
        self._step, self._judge, self._known = step, problem.judge, history(step)
        self._closures: dict[int, list[tuple[frozenset[int], Closure]]] = {}
        self._recipes: dict[tuple[tuple[int, ...], tuple[int, ...]], ClosedRecipe | None] = {}
        saved = [save.storage for save in step.saves]
        self.save_of = {storage: n for n, storage in enumerate(saved)}
        self._read = dict(zip(saved, listed(step.first_read[: len(saved)]), strict=True))
        self._idle = dict(zip(saved, listed(step.idle_from[: len(saved)]), strict=True))
        reads = step.slots(step.points(step.first_read[: len(saved)]))
        self._slot = dict(zip(saved, listed(reads), strict=True))
        large = (s for n, s in enumerate(saved) if step.size[n] >= max(1, problem.min_size_bytes))
        may = "recompute" in problem.allow
        self.droppable = tuple(sorted({s for s in large if may and self._is_droppable(s)}, key=self._making))

    def single(self, storage: int) -> RecomputeOption:
        """Return the recompute of one droppable storage, if all others are kept."""
        found = self._recipe((storage,), self._closure(storage, frozenset()))
        if found is None:
            raise AssertionError("a droppable storage has a recipe")
        return found.option

    def of(self, dropped: Collection[int], most_ops: int, room: Ints | None) -> list[ClosedRecipe]:
        """Return recomputes of droppable storages, in the order they run.

        What cannot be dropped together with the others is not dropped.

        Args:
            dropped: the storages.
            most_ops: what a recipe makes on its way stays if it is read at most this number of ops later.
            room: bytes that are free per slot if all of `dropped` are away until they are read; None for any.
        """
        kept = set[int]()
        while True:
            found, wrong = self._try(set(dropped) - kept, most_ops, None if room is None else room.copy())
            if wrong is None:
                return found
            kept.add(wrong)

    def every(self) -> Iterator[tuple[RecomputeOption, ...]]:
        """Yield the recomputes of every set of droppable storages, whatever stays once it is made; for few of them."""
        reads = [self._read[storage] for storage in self.droppable]
        gaps = sorted({abs(one - other) for one, other in combinations(reads, 2)} | {0})
        seen = set[tuple[Recompute, ...]]()
        sets = (combinations(self.droppable, count) for count in range(1, len(self.droppable) + 1))
        for dropped, most_ops in product(chain.from_iterable(sets), [-1, *gaps]):
            found = tuple(recipe.option for recipe in self.of(dropped, most_ops, None))
            recomputes = tuple(option.recompute for option in found)
            if recomputes not in seen:
                seen.add(recomputes)
                yield found

    def _making(self, storage: int) -> tuple[int, int]:
        return self._known.maker[storage], storage

    def _is_droppable(self, storage: int) -> bool:
        before = self._read[storage]
        if storage not in self._known.maker or not self._idle[storage] < before:
            return False
        if not_droppable(self._step, self._known, storage, before) is not None:
            return False
        return self._recipe((storage,), self._closure(storage, frozenset())) is not None

    def _try(self, left: set[int], most_ops: int, room: Ints | None) -> tuple[list[ClosedRecipe], int | None]:
        """Return the recomputes of a set, or a storage of it that cannot be dropped together with the others."""
        found = list[ClosedRecipe]()
        for storage in sorted(left, key=lambda each: (self._read[each], -each)):
            if storage not in left:
                continue
            closed = self._closure(storage, left)
            stay = (storage, *self._staying(storage, closed, left, most_ops, room))
            recipe = self._recipe(tuple(sorted(stay)), closed)
            if recipe is None:
                return [], storage
            found.append(recipe)
            left.difference_update(stay)
        return found, None

    def _staying(
        self, storage: int, closed: Closure, left: set[int], most_ops: int, room: Ints | None
    ) -> Iterator[int]:
        """Yield dropped storages that a recipe makes whole on its way and that stay, those read first."""
        before, again = self._read[storage], set(closed.recipe)
        for other in sorted(closed.remade & left, key=lambda each: (self._read[each], -each)):
            if self._read[other] - before > most_ops:
                return
            if other == storage or not self._idle[other] < before:
                continue
            if not again.issuperset(self._known.writers_before(other, before)):
                continue
            if room is not None and not self._holds(room, storage, other):
                return
            yield other

    def _holds(self, room: Ints, storage: int, other: int) -> bool:
        """Take room for a storage from the recipe of another one until it is read, if there is enough."""
        begin, end, size_bytes = self._slot[storage], self._slot[other], int(self._step.storage_bytes[other])
        if begin < end and int(room[begin:end].min()) < size_bytes:
            return False
        room[begin:end] -= size_bytes
        return True

    def _closure(self, storage: int, away: frozenset[int] | set[int]) -> Closure:
        known = self._closures.setdefault(storage, [])
        for there, closed in known:
            if closed.asked & away == there:
                return closed
        closed = closure(self._known, (storage,), self._read[storage], away)
        known.append((closed.asked & away, closed))
        return closed

    def _recipe(self, storages: tuple[int, ...], closed: Closure) -> ClosedRecipe | None:
        """Return the recompute of some storages; None if there is no recipe, or it is not allowed."""
        if not closed.recipe:
            return None
        key = storages, closed.recipe
        if key not in self._recipes:
            before_op = min(self._read[storage] for storage in storages)
            recompute = Recompute(storages=storages, recipe=closed.recipe, before_op=before_op)
            kind = "single" if len(storages) == 1 else "block"
            option = option_of(self._step, kind, "", recompute) if self._judge(recompute) else None
            rebuild = rebuild_of(self._step, recompute, self.save_of)
            self._recipes[key] = None if option is None else ClosedRecipe(option, rebuild)
        return self._recipes[key]
