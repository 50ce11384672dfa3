"""estimating: what swaps and recomputes cost, in a fraction of the time of a play.

Computes: the time of the recipes, and about how long compute waits for copies. Each lane moves its copies one after the
other. A write begins when its storage is saved. A copy back begins as late as all copies behind it allow. Bytes that
have not left yet, or are back already, need room. What lacks room has to wait for as long as its bytes take.
Reference: pipe.py, of which this is one fixed choice. Optimal: never; it is near the play where room is not scarce, and
below it elsewhere. Ignores: that one wait makes later ones shorter or longer. Cost: linear in slots and recipes, and
n log n in the swaps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elbowroom.planners.optimal.solver import Reals
from elbowroom.planners.optimal.swaps_after_recomputes import Basis
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Ints
from elbowroom.step.moves import Moves, need
from elbowroom.step.routes import link_to


class QuickEstimate(NamedTuple):
    """About what a choice costs.

    Attributes:
        extra_ns: time beyond the ops of the step, and what the choice costs beyond its time.
        over_bytes: allocated bytes beyond the budget, at most.
        slot: where the most bytes are held.
    """

    extra_ns: float
    over_bytes: int
    slot: int


def quick_estimate(basis: Basis, n: Ints, slot_op: Ints) -> QuickEstimate:
    """Estimate swaps of saves `n` together with the recomputes of a basis.

    Args:
        basis: the recomputes.
        n: the saves that are swapped; all of them may be.
        slot_op: per slot, the op at its begin, from the first one of the step.
    """
    moves, budget_bytes = basis.on_demand(n), basis.problem.budget_bytes
    needed = need(basis.asked.step, moves)
    slot = int(needed.argmax())
    extra_ns = float(basis.problem.step.at_ns[-1] - basis.asked.step.at_ns[-1])
    if basis.asked.prices is not None:
        recipes = [option.recompute.recipe for option in basis.options]
        extra_ns += basis.asked.prices.about_ns(basis.asked.step, recipes, int(moves.size.sum()))
    if len(n):
        extra_ns += _waits_ns(basis, moves, np.maximum(budget_bytes - needed, 0), slot_op)
    return QuickEstimate(extra_ns, max(0, int(needed[slot]) - budget_bytes), slot)


def slot_ops(basis: Basis) -> Ints:
    """Return per slot of the step the op at its begin, from the first one."""
    step = basis.asked.step
    return np.searchsorted(step.point_of, step.borders, side="right").astype(np.int64) - 1


def _waits_ns(basis: Basis, moves: Moves, room: Ints, slot_op: Ints) -> float:
    """Return about how long compute waits for copies out and back."""
    step, tier = basis.problem.step, basis.asked.tier
    if tier is None:
        return 0.0
    out_ns, back_ns = copy_ns(link_to(basis.asked.machine, tier), moves.size)
    slot_ns = step.at_ns[slot_op].astype(np.float64)
    # Out: each write begins once its storage is saved and the one before has ended.
    passed = np.cumsum(out_ns)
    end_ns = passed + np.maximum.accumulate(step.nominal_ns(step.saved_at[moves.n]) - (passed - out_ns))
    written = np.clip(np.searchsorted(slot_ns, end_ns), moves.begin, moves.end)
    late = _longest(_held(room, moves.begin, written, moves.size), room, moves.size, out_ns)
    # Back: each copy ends when its storage is read, or when the one behind has to begin.
    returns = np.nonzero(step.returns[moves.n])[0]
    order = returns[np.argsort(-moves.end[returns], kind="stable")]
    end, size = moves.end[order], moves.size[order]
    passed = np.cumsum(back_ns[order])
    due_ns = slot_ns[np.minimum(end, len(slot_ns) - 1)]
    start_ns = np.minimum.accumulate(due_ns + (passed - back_ns[order])) - passed
    start = np.clip(np.searchsorted(slot_ns, start_ns), moves.begin[order], end)
    return late + _longest(_held(room, start, end, size), room, size, back_ns[order])


def _held(room: Ints, begin: Ints, end: Ints, size: Ints) -> Ints:
    """Return per slot the bytes of windows [begin, end)."""
    change = np.zeros(len(room) + 1, np.int64)
    np.add.at(change, begin, size)
    np.subtract.at(change, end, size)
    return np.cumsum(change[:-1])


def _longest(held: Ints, room: Ints, size: Ints, lane_ns: Ints) -> float:
    """Return how long the lane takes for the most bytes that lack room."""
    lacking = int((held - room).max(initial=0))
    rate: Reals = lane_ns / np.maximum(1, size)
    return lacking * float(rate.min()) if len(rate) else 0.0
