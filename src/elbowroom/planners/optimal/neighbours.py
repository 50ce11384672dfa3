"""neighbouring: what plans for some budgets of a step give to the plan for the next one.

Computes: trials to begin with. A plan for a smaller budget meets a larger one as it is. One for a larger budget is
brought within. Both say about how many allocated bytes go with the reserved ones, so the search needs no ladder.
Reference: parametric programming (Gal and Nedoma, "Multiparametric Linear Programming", 1972) goes from one right-hand
side to the next in the same way. Optimal: never by itself. Ignores: budgets further off. Cost: a few plays a budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from elbowroom.planners.optimal.leaving import Leaving, Scale, WeighedLeaving
from elbowroom.planners.optimal.reserved_trials import FittingTrial
from elbowroom.planners.optimal.rough_trials import Found, Start, pool_of
from elbowroom.planners.optimal.trial import Trial
from elbowroom.planners.problem import peak_of
from elbowroom.step.last_step import listed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbour:
    """Trial that meets another budget.

    Attributes:
        budget_bytes: reserved bytes that it meets.
        held: the trial.
    """

    budget_bytes: int
    held: FittingTrial

    @classmethod
    def of(cls, budget_bytes: int, found: Found) -> Neighbour:
        """Return a trial that meets a budget without waits for the driver."""
        return cls(budget_bytes=budget_bytes, held=FittingTrial(found=found, step_ns=found[0].cost[0], is_driven=False))

    @property
    def allocated_bytes(self) -> int:
        """Peak of its allocated bytes."""
        trial, _ = self.held.found
        asked = trial.basis.asked
        return peak_of(asked.step if asked.states is None else asked.states.step, trial.played)


@final
class Neighbours:
    """Trials for the budgets that were asked for before, of one step with the same knobs."""

    def __init__(self) -> None:
        self._met: list[Neighbour] = []

    def add(self, budget_bytes: int, held: FittingTrial) -> None:
        """Note the trial for a budget."""
        self._met.append(Neighbour(budget_bytes=budget_bytes, held=held))

    def below(self, budget_bytes: int) -> Found | None:
        """Return the fastest trial for a budget that is not larger; None if there is none."""
        found = [each for each in self._met if each.budget_bytes <= budget_bytes]
        return min(found, key=lambda each: each.held.step_ns).held.found if found else None

    def starts(self, budget_bytes: int, least_bytes: int) -> Iterator[Start]:
        """Yield the nearest trials on both sides as choices to begin with.

        Args:
            budget_bytes: the budget of reserved bytes.
            least_bytes: the least allocated bytes that can be planned for.
        """
        below = max((each for each in self._met if each.budget_bytes <= budget_bytes), key=_budget, default=None)
        above = min((each for each in self._met if each.budget_bytes > budget_bytes), key=_budget, default=None)
        for each in (below, above):
            if each is not None:
                yield start_near(each, budget_bytes, least_bytes)


def _budget(of: Neighbour) -> int:
    return of.budget_bytes


def start_near(near: Neighbour, budget_bytes: int, least_bytes: int) -> Start:
    """Return a trial as a choice for another budget: as it is if it meets it, and else brought within.

    It allocates about the same share of the budget as of its own.
    """
    trial, _ = near.held.found
    rung = int(near.allocated_bytes / near.budget_bytes * budget_bytes)
    scale = Scale(pool_of(trial.basis.asked).within(max(least_bytes, min(budget_bytes, rung))))
    dropped = {storage for recompute in trial.basis.recomputes for storage in recompute.storages}
    swapped = frozenset(listed(trial.moves.n))
    choice = Leaving(scale.droppable.intersection(dropped), swapped, near.held.most_ops, near.held.margin)
    if near.budget_bytes > budget_bytes:
        return scale, scale.brought_within(scale.estimated(choice))
    return scale, _as_it_is(scale, choice, trial)


def _as_it_is(scale: Scale, choice: Leaving, trial: Trial) -> WeighedLeaving:
    return WeighedLeaving(
        choice=choice,
        basis=trial.basis,
        n=trial.moves.n,
        step_ns=float(trial.cost[0]),
        charge_ns=0.0,
        over_bytes=0,
        slot=scale.estimated(choice).slot,
        trial=trial,
    )
