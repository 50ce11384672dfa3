"""lms: at the limit, swap the inactive storages whose last use is longest ago; swap them back when they are read.

Computes: a walk along the step. When more than the limit would be held, idle storages leave, the one whose last use is
longest ago first. This goes on until the rest fits or nothing is idle. Nothing is prefetched. Optimizer states,
gradients and parameters leave as saved storages do, if they may. One that left in the step before is away as this one
begins.
Reference: IBM's PyTorch Large Model Support (torch.cuda.set_limit_lms, torch.cuda.set_size_lms; last for torch 1.5,
pytorch/pytorch#35633): a limit on allocated bytes, and a size below which tensors stay.
Optimal: never in general. Ignores: the cost of a copy, and when a storage is needed again. IBM's code copied out only
at the limit. Here the write starts once the storage is saved, as in every plan.
Cost: n log n in the saves, plus the slots.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.optimal.state_choice import all_away, deciding, states_on_offer
from elbowroom.planners.problem import Problem, movable, moves_on_demand
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves

NAME = "lms"


def lms(problem: Problem, *, limit_bytes: int | None = None, size_bytes: int | None = None) -> Plan:
    """Swap at the limit the storages whose last use is longest ago.

    Args:
        problem: the problem.
        limit_bytes: allocated bytes from which on inactive storages leave; None for the budget. This limit is soft: if
            nothing is inactive, more is held.
        size_bytes: smaller storages stay; None for those that stay in any plan.

    Raises:
        Infeasible: the plan holds more than the budget.
    """
    step, of_states = problem.step, states_on_offer(problem)
    n = np.concatenate([movable(all_away(problem)), of_states])
    limit = problem.budget_bytes if limit_bytes is None else limit_bytes
    gone = _reclaimed(step, n[step.size[n] >= (size_bytes or 0)], limit)
    states = gone[gone >= len(step.saves)]
    left = deciding(problem, states, step.first_read[states])
    return fitting(left, NAME, moves_on_demand(left.step, gone[gone < len(step.saves)]))


def _reclaimed(step: LastStep, n: Ints, limit_bytes: int) -> Ints:
    """Return which of the windows `n` leave if at most `limit_bytes` should be held."""
    moves = moves_on_demand(step, n)
    size, coming = listed(moves.size), sorted(_idle(moves, len(step.slot_peak)))
    inactive: list[tuple[int, int, int]] = []  # (last use, move, end) of what is idle and still on the device
    back: list[tuple[int, int]] = []  # (slot of its return, bytes) of what has left
    away, entered, gone = 0, 0, set[int]()
    for slot, held in enumerate(listed(step.slot_peak)):
        while entered < len(coming) and coming[entered][0] <= slot:
            _, last_use, i, end = coming[entered]
            entered += 1
            if i in gone:
                away += size[i]
                heapq.heappush(back, (end, size[i]))
            else:
                heapq.heappush(inactive, (last_use, i, end))
        while back and back[0][0] <= slot:
            away -= heapq.heappop(back)[1]
        while held - away > limit_bytes and inactive:
            _, i, end = heapq.heappop(inactive)
            if end > slot and i not in gone:
                heapq.heappush(back, (end, size[i]))
                away += size[i]
                gone.add(i)
    return np.sort(moves.n[np.array(sorted(gone), np.int64)])


def _idle(moves: Moves, slots: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first slot, slot of the last use, move, end) of the times in which a storage is idle.

    One that is idle across the end of the step has two: before its first use, and after its last.
    """
    columns = listed(moves.begin), listed(moves.end), moves.wraps.tolist()
    for i, (begin, end, wraps) in enumerate(zip(*columns, strict=True)):
        if wraps:
            yield 0, begin - slots, i, end
        yield begin, begin, i, slots if wraps else end
