"""trying: one choice of swaps, arranged and played, with what it costs. What `optimal` weighs its candidates by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from elbowroom.lanes import NEVER, Play
from elbowroom.lifetimes import Ints
from elbowroom.moves import Moves
from elbowroom.planners.arranging import bring_back_early, bring_back_later
from elbowroom.planners.placing import place_backs
from elbowroom.planners.problem import Problem, moves_on_demand, moving, peak_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One choice and what it does.

    Attributes:
        moves: the swaps.
        done: their play.
        cost: (simulated step_ns, bytes moved); the least wins.
    """

    moves: Moves
    done: Play
    cost: tuple[int, int]


def fits(problem: Problem, n: Ints) -> bool:
    """Whether swapping saves `n`, each back on demand, meets the budget."""
    return peak_of(problem.step, moves_on_demand(problem.step, n)) <= problem.budget_bytes


def tried(problem: Problem, moves: Moves) -> Trial:
    """Play moves as they are."""
    done = moving(problem, moves)
    moved = int(moves.size[done.out_start_ns != NEVER].sum() + moves.size[done.back_start_ns != NEVER].sum())
    return Trial(moves=moves, done=done, cost=(done.step_ns, moved))


def arranged(problem: Problem, n: Ints) -> Trial:
    """The fastest of a few ways to bring saves `n` back; they must fit."""
    early = tried(problem, bring_back_early(problem, n))
    later = tried(problem, bring_back_later(problem, early.moves, early.done))
    return best_of([later, early, tried(problem, place_backs(problem, n))])


def best_of(trials: Iterable[Trial]) -> Trial:
    """The trial that costs least; the first of equals."""
    return min(trials, key=lambda trial: trial.cost)


def waited_for(trial: Trial) -> list[int]:
    """The swapped saves that compute waited for, the longest wait first."""
    waited: dict[int, int] = {}
    for stall in trial.done.stalls:
        waited[stall.move] = waited.get(stall.move, 0) + stall.end_ns - stall.start_ns
    return [int(trial.moves.n[i]) for i in sorted(waited, key=lambda i: (-waited[i], i))]


def without(n: Ints, *saves: int) -> Ints:
    """The saves of `n` but for some."""
    return n[~np.isin(n, np.array(saves, np.int64))]
