"""trying: one choice of swaps and recomputes, arranged and played, with its cost: how `optimal` weighs choices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from elbowroom.plan import Plan
from elbowroom.planners.optimal.bring_back_early import bring_back_early, bring_back_later
from elbowroom.planners.optimal.swaps_after_recomputes import Basis
from elbowroom.planners.problem import as_plan, moving
from elbowroom.simulate.lanes import Play, moved_bytes
from elbowroom.step.last_step import Ints
from elbowroom.step.moves import Moves


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One choice, played.

    Attributes:
        basis: the recomputes.
        moves: the swaps.
        played: the swaps together with those of decided states.
        done: the play of all of these.
        cost: (simulated step_ns and extra_ns, bytes moved); the least wins.
        extra_ns: what it costs beyond its time, if plans are chosen by energy; else 0.
    """

    basis: Basis
    moves: Moves
    played: Moves
    done: Play
    cost: tuple[int, int]
    extra_ns: int = 0

    def plan(self, planner: str) -> Plan:
        """Return the choice as a plan."""
        made = as_plan(self.basis.asked, planner, self.moves)
        return replace(made, recomputes=tuple(option.recompute for option in self.basis.options))


def tried(basis: Basis, moves: Moves) -> Trial:
    """Play moves as they are, together with the recomputes."""
    moves = basis.moves(moves.n, moves.back)
    done = moving(basis.asked, moves)
    _, played = basis.asked.whole(moves)
    extra_ns = basis.asked.extra_ns(played, done)
    cost = done.step_ns + extra_ns, moved_bytes(played, done)
    return Trial(basis=basis, moves=moves, played=played, done=done, cost=cost, extra_ns=extra_ns)


def arranged(basis: Basis, n: Ints) -> Trial:
    """Return the faster of two ways to bring saves `n` back; the swaps must fit the budget."""
    early = tried(basis, bring_back_early(basis.problem, n))
    later = tried(basis, bring_back_later(basis.problem, early.moves, early.done))
    return best_of([later, early])


def best_of(trials: Iterable[Trial]) -> Trial:
    """Return the trial that costs least; the first of equals."""
    return min(trials, key=lambda trial: trial.cost)


def waited_for(trial: Trial) -> list[int]:
    """Return the swapped saves that compute waited for, the longest wait first."""
    waited: dict[int, int] = {}
    for stall in trial.done.stalls:
        waited[stall.move] = waited.get(stall.move, 0) + stall.end_ns - stall.start_ns
    ordered = [int(trial.played.n[i]) for i in sorted(waited, key=lambda i: (-waited[i], i))]
    return [n for n in ordered if n < len(trial.basis.asked.step.saves)]


def without(n: Ints, *saves: int) -> Ints:
    """Return the saves of `n` without some."""
    return n[~np.isin(n, np.array(saves, np.int64))]
