"""lms: at the limit, swap the inactive storages whose last use is longest ago; swap them back when they are read.

Computes: a walk along the step. When more than the limit would be held, idle storages leave, the one whose last use is
longest ago first. This goes on until the rest fits or nothing is idle. Nothing is prefetched.
Reference: IBM's PyTorch Large Model Support (torch.cuda.set_limit_lms, torch.cuda.set_size_lms; last for torch 1.5,
pytorch/pytorch#35633): a limit on allocated bytes, and a size below which tensors stay.
Optimal: never in general. Ignores: the cost of a copy, and when a storage is needed again. IBM's code copied out only
at the limit. Here the write starts once the storage is saved, as in every plan.
Cost: n log n in the saves, plus the slots.
"""

from __future__ import annotations

import heapq

import numpy as np

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.problem import Problem, movable, moves_on_demand
from elbowroom.step.last_step import Ints, LastStep

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
    step, n = problem.step, movable(problem)
    limit = problem.budget_bytes if limit_bytes is None else limit_bytes
    return fitting(problem, NAME, moves_on_demand(step, _reclaimed(step, n[step.size[n] >= (size_bytes or 0)], limit)))


def _reclaimed(step: LastStep, n: Ints, limit_bytes: int) -> Ints:
    """Return which of the saves `n` leave if at most `limit_bytes` should be held."""
    moves = moves_on_demand(step, n)
    order = np.argsort(moves.begin, kind="stable").tolist()
    begin, end, size = moves.begin.tolist(), moves.end.tolist(), moves.size.tolist()
    inactive: list[tuple[int, int]] = []  # (last use, move) of saves that are idle and still on the device
    back: list[tuple[int, int]] = []  # (slot of its return, bytes) of saves that have left
    away, entered, gone = 0, 0, list[int]()
    for slot, held in enumerate(step.slot_peak.tolist()):
        while entered < len(order) and begin[order[entered]] <= slot:
            heapq.heappush(inactive, (begin[order[entered]], order[entered]))
            entered += 1
        while back and back[0][0] <= slot:
            away -= heapq.heappop(back)[1]
        while held - away > limit_bytes and inactive:
            _, i = heapq.heappop(inactive)
            if end[i] > slot:
                heapq.heappush(back, (end[i], size[i]))
                away += size[i]
                gone.append(i)
    return np.sort(moves.n[np.array(gone, np.int64)])
