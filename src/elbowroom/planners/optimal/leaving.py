"""weighing: what a choice of drops and swaps costs, estimated or played.

Computes: for a choice, the recomputes that it takes (closed_recipes.py), and the time of the step. That is estimated
(quick_estimate.py), or played with the swaps arranged. Bytes above the budget are charged with a price per byte.
Reference: penalty methods (Courant, "Variational Methods for the Solution of Problems of Equilibrium and Vibrations",
1943). Optimal: does not apply. Ignores: nothing that a play knows. Cost: linear in the choice, or a few plays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final

import numpy as np

from elbowroom.planners.optimal.closed_recipes import ANY_OPS
from elbowroom.planners.optimal.quick_estimate import quick_estimate, slot_ops
from elbowroom.planners.optimal.refine import Pool, covered
from elbowroom.planners.optimal.solver import Reals
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, basis_with
from elbowroom.planners.optimal.trial import Trial, arranged
from elbowroom.step.last_step import Ints, listed
from elbowroom.step.moves import moves_of, need

MARGINS = (None, 0.0, 0.5, 1.0)
"""Values of `Leaving.margin`."""
PRICE = 4.0
"""What all bytes of the step cost that lie above the budget, in steps."""
LEAST_OVER = 100
"""Bytes above the budget cost at least as much as one such part of it."""


class Leaving(NamedTuple):
    """What is dropped and what is swapped.

    Attributes:
        dropped: storages that are dropped.
        swapped: saves that are swapped; those that recipes keep in place are not.
        most_ops: what a recipe makes on its way stays if it is read at most this number of ops later,
        margin: and if it fits, with this share of the largest storage to spare; None: it stays in any case.
    """

    dropped: frozenset[int]
    swapped: frozenset[int]
    most_ops: int = ANY_OPS
    margin: float | None = 0.0


NOTHING = Leaving(frozenset(), frozenset())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeighedLeaving:
    """One choice, with what it costs.

    Attributes:
        choice: the choice.
        basis: its recomputes.
        n: the saves that it swaps.
        step_ns: time of the step; with waits for the driver, if reserved bytes were counted.
        charge_ns: what its bytes above the budget are charged with.
        over_bytes: allocated or reserved bytes above the budget.
        slot: where the most bytes are held.
        trial: the choice as it was played; None if it was estimated only.
        is_driven: whether compute waits for the driver.
    """

    choice: Leaving
    basis: Basis
    n: Ints
    step_ns: float
    charge_ns: float
    over_bytes: int
    slot: int
    trial: Trial | None = None
    is_driven: bool = False

    @property
    def cost_ns(self) -> float:
        """Time of the step and the charge."""
        return self.step_ns + self.charge_ns


class Reserving(NamedTuple):
    """What it takes an allocator to stay within a budget of reserved bytes.

    Attributes:
        over_bytes: about how many bytes are reserved above the budget.
        waits_ns: time for which compute waits for the driver, if nothing is above the budget.
    """

    over_bytes: int
    waits_ns: int


Over = Callable[[Trial], Reserving]
"""Replays a trial through an allocator that has the budget as its limit."""


@final
class Scale:
    """Weighs the choices of one pool.

    Args:
        pool: swaps and recomputes to choose from, within its problem's budget of allocated bytes.
    """

    def __init__(self, pool: Pool) -> None:
        step, recipes = pool.problem.step, pool.recipes
        self.pool, self.recipes, self.step = pool, recipes, step
        self.swappable, self.droppable = listed(pool.n), frozenset(recipes.droppable)
        self._can_swap = frozenset(self.swappable)
        self.step_ns = float(step.at_ns[-1])
        self._plain = pool.basis(())
        self._slot_op = slot_ops(self._plain)
        self._slots = listed(step.slots(step.point_of))
        self._largest = int(step.size[pool.n].max(initial=0))
        self._price = PRICE * self.step_ns / max(1, int(step.level.max()))
        saves = sorted({*self.swappable, *(recipes.save_of[s] for s in recipes.droppable)})
        self.saves = np.array(saves, np.int64)
        self.drop_weights = self._weights([recipes.save_of[s] for s in recipes.droppable])
        self.swap_weights = self._weights(self.swappable)
        begin, end = step.window(self.saves, step.first_read[self.saves])
        self._begin, self._end = step.slots(begin), step.slots(end)

    def estimated(self, choice: Leaving) -> WeighedLeaving:
        """Estimate a choice."""
        basis = self._basis(choice)
        n = np.array(sorted(choice.swapped.intersection(listed(basis.n))), np.int64)
        found = quick_estimate(basis, n, self._slot_op)
        return WeighedLeaving(
            choice=choice,
            basis=basis,
            n=n,
            step_ns=self.step_ns + found.extra_ns,
            charge_ns=self._charge_ns(found.over_bytes),
            over_bytes=found.over_bytes,
            slot=found.slot,
        )

    def played(self, weighed: WeighedLeaving) -> WeighedLeaving:
        """Play a choice; more is swapped where it is not quite within the budget."""
        if weighed.over_bytes > self._largest or weighed.trial is not None:
            return weighed
        trial = arranged(weighed.basis, weighed.n) if weighed.basis.fits(weighed.n) else None
        trial = trial or covered(weighed.basis, weighed.n)
        return weighed if trial is None else self._of_trial(weighed, trial)

    def brought_within(self, weighed: WeighedLeaving) -> WeighedLeaving:
        """Swap more until a choice is within the budget, if that is possible, and play it."""
        trial = covered(weighed.basis, weighed.n)
        return weighed if trial is None else self._of_trial(weighed, trial)

    def counted(self, weighed: WeighedLeaving, over: Over) -> WeighedLeaving:
        """Count the reserved bytes of a choice that was played, and its waits for the driver."""
        if weighed.trial is None:
            return weighed
        over_bytes, waits_ns = over(weighed.trial)
        return replace(
            weighed,
            step_ns=float(weighed.trial.cost[0] + waits_ns),
            over_bytes=over_bytes,
            charge_ns=self._charge_ns(over_bytes),
            is_driven=waits_ns > 0,
        )

    def _charge_ns(self, over_bytes: int) -> float:
        """Return what bytes above the budget cost: at least that of a part of it, so that the last ones go too."""
        least_bytes = self.pool.problem.budget_bytes // LEAST_OVER
        return self._price * max(over_bytes, least_bytes) if over_bytes else 0.0

    def _of_trial(self, weighed: WeighedLeaving, trial: Trial) -> WeighedLeaving:
        return replace(
            weighed,
            choice=weighed.choice._replace(swapped=frozenset(listed(trial.moves.n))),
            n=trial.moves.n,
            step_ns=float(trial.cost[0]),
            charge_ns=0.0,
            over_bytes=0,
            trial=trial,
        )

    def _weights(self, saves: Sequence[int]) -> list[float]:
        """Return running sums of how often each save is drawn: large ones more often."""
        sizes: Reals = np.sqrt(self.step.size[np.array(saves, np.int64)])
        return np.cumsum(sizes).tolist()

    def ways_of(self, n: int) -> list[Literal["drop", "swap"]]:
        """Return the ways in which a save may leave."""
        ways: list[Literal["drop", "swap"]] = ["drop"] if self.step.saves[n].storage in self.droppable else []
        return [*ways, "swap"] if n in self._can_swap else ways

    def idle_at(self, slot: int) -> list[int]:
        """Return the saves that may be dropped or swapped and are idle in a slot."""
        return listed(self.saves[(self._begin <= slot) & (slot < self._end)])

    def rebuilt_at(self, basis: Basis, slot: int) -> list[int]:
        """Return the saves that recipes rebuild in a slot."""
        at = [rebuild for rebuild in basis.rebuilds if self._slots[rebuild.position - self.step.first_op] == slot]
        return [n for rebuild in at for n in listed(rebuild.n)]

    def _basis(self, choice: Leaving) -> Basis:
        if not choice.dropped:
            return self._plain
        room = None if choice.margin is None else self._room(choice)
        found = self.recipes.of(choice.dropped, choice.most_ops, room)
        options, rebuilds = [each.option for each in found], [each.rebuild for each in found]
        return basis_with(self.pool.problem, self.pool.n, options, rebuilds, self.recipes.save_of)

    def _room(self, choice: Leaving) -> Ints:
        """Return per slot the bytes that are free if all that is chosen is away until it is read."""
        away = [*choice.swapped, *(self.recipes.save_of[s] for s in choice.dropped)]
        n, step = np.unique(np.array(away, np.int64)), self.step
        needed = need(step, moves_of(step, n, step.first_read[n]))
        spare_bytes = int((choice.margin or 0.0) * self._largest)
        return self.pool.problem.budget_bytes - spare_bytes - needed
