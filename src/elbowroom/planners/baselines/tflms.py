"""tflms: swap what is used again many levels later, back a fixed number of levels ahead; options tuned by simulation.

Computes: every op has a level. A storage is swapped if its first read back comes more than `swapout_threshold` levels
after the op that made it. It comes back once the last op `swapin_ahead` levels before that read has ended. An option
that is None is tuned. For each of several distances ahead, that is the largest threshold that meets the budget (fewest
swaps). The fastest of these in simulation wins.
Reference: Le, Imai, Negishi, Kawachiya, "TFLMS: Large Model Support in TensorFlow by Graph Rewriting" (arXiv
1807.02037; ISMM 2019), and the options of its second version, whose simulator tunes them.
Optimal: never in general: one threshold and one distance serve all storages. Ignores: sizes, rates and copies that
share a lane, except for what the tuning sees of them.
Adapted: `serialization` (control edges that give every op a level of its own) is all or nothing. It is on by default,
as eager PyTorch runs one op after the other. A storage comes back once for all its reads. So `swapin_groupby` joins
different storages rather than the consumers of one. A plan cannot express a copy out that compute waits for, so
sync_mode 1 and 3 are left out.
Cost: linear in the ops, and one play of n saves for each distance that is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.problem import Problem, movable, moving, peak_of
from elbowroom.step.last_step import Ints, LastStep
from elbowroom.step.moves import Moves, moves_of
from elbowroom.units import NONE

NAME = "tflms"
SYNCHRONOUS_BACK = 2
MOST_AHEAD = 2**10
"""Largest distance ahead that is tried: 1, 2, 4 and so on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Levels:
    """Levels of the ops of a step, and of the saves that may be swapped.

    Attributes:
        n: the saves that may move.
        ready: for each level, one past the position of the last op of this level or a lower one.
        made: for each save of n, the level of the op that made its storage.
        read: for each save of n, the level of the op that reads it back first.
    """

    n: Ints
    ready: Ints
    made: Ints
    read: Ints


def tflms(
    problem: Problem,
    *,
    swapout_threshold: int | None = None,
    swapin_ahead: int | None = None,
    swapin_groupby: int = 0,
    sync_mode: Literal[0, 2] = 0,
    serialization: bool = True,
) -> Plan:
    """Swap by distance in levels.

    Args:
        problem: the problem.
        swapout_threshold: a storage is swapped if its first read comes more levels than this after the op that makes
            it; None to tune it.
        swapin_ahead: levels ahead of the read at which it starts back; 1 is on demand; None to tune it.
        swapin_groupby: storages first read at most this many levels after another one come back together with it.
        sync_mode: 0, or 2 for swaps back that compute waits for, which start when they are read.
        serialization: whether each op is a level of its own; otherwise an op's level is one more than the highest of
            what it reads and writes.

    Raises:
        Infeasible: the plan holds more than the budget; with tuned options, all plans that were tried do.
    """
    levels = _levels_of(problem, serialization=serialization)
    aheads = _aheads(levels) if swapin_ahead is None else (swapin_ahead,)
    if sync_mode == SYNCHRONOUS_BACK:
        aheads = (1,)
    trials = [_tuned(problem, levels, swapout_threshold, ahead, swapin_groupby) for ahead in aheads]
    within = [moves for moves in trials if peak_of(problem.step, moves) <= problem.budget_bytes]
    if within:
        return fitting(problem, NAME, min(within, key=lambda moves: _cost(problem, moves)))
    return fitting(problem, NAME, min(trials, key=lambda moves: peak_of(problem.step, moves)))


def _aheads(levels: _Levels) -> tuple[int, ...]:
    most = min(MOST_AHEAD, len(levels.ready))
    return tuple(2**power for power in range(max(1, most.bit_length())))


def _cost(problem: Problem, moves: Moves) -> tuple[int, int]:
    """Return the simulated time of the step, then the bytes moved."""
    done = moving(problem, moves)
    return done.step_ns, int(moves.size[done.out_start_ns != NONE].sum())


def _tuned(problem: Problem, levels: _Levels, threshold: int | None, ahead: int, groupby: int) -> Moves:
    """Return the swaps above a threshold; None takes the largest threshold that meets the budget, if any."""
    back = _backs(problem.step, levels, ahead, groupby)
    distance = levels.read - levels.made

    def above(least: int) -> Moves:
        chosen = distance > least
        return moves_of(problem.step, levels.n[chosen], back[chosen])

    if threshold is not None:
        return above(threshold)
    choices = [-1, *np.unique(distance).tolist()]
    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if peak_of(problem.step, above(choices[middle])) <= problem.budget_bytes:
            low = middle
        else:
            high = middle - 1
    return above(choices[low])


def _backs(step: LastStep, levels: _Levels, ahead: int, groupby: int) -> Ints:
    """Return for each save of `levels.n` the tick at which it starts back."""
    wanted = _grouped(levels.read, groupby) - ahead
    done_at = np.where(wanted < 0, step.first_op, levels.ready[np.maximum(wanted, 0)])
    first = step.ticks[_index(np.searchsorted(step.ticks, step.idle_from[levels.n], side="right"), step.ticks)]
    at = step.ticks[_index(np.searchsorted(step.ticks, done_at, side="left"), step.ticks)]
    on_demand = step.first_read[levels.n]
    back = np.minimum(np.maximum(at, first), on_demand)
    return np.where(step.returns[levels.n] & (ahead > 1 or groupby > 0), back, on_demand)


def _index(found: Ints, of: Ints) -> Ints:
    return np.minimum(found, len(of) - 1)


def _grouped(read: Ints, groupby: int) -> Ints:
    """Return for each save the level of the first read of its group."""
    order, grouped, start = np.argsort(read, kind="stable").tolist(), read.copy(), -groupby - 1
    for i in order:
        start = int(read[i]) if read[i] > start + groupby else start
        grouped[i] = start
    return grouped


def _levels_of(problem: Problem, *, serialization: bool) -> _Levels:
    step = problem.step
    n = movable(problem)
    of_op = np.arange(step.end_op - step.first_op) if serialization else np.fromiter(_topological(step), np.int64)
    last = np.full(int(of_op.max()) + 1, step.first_op, np.int64)
    np.maximum.at(last, of_op, step.first_op + 1 + np.arange(len(of_op)))
    born = np.array([step.op_at(int(point)) for point in step.born[step.storage_of(n)]], np.int64)
    made = of_op[born - step.first_op]
    read = of_op[np.minimum(step.first_read[n], step.end_op - 1) - step.first_op]
    # Levels need not rise along the order of the ops: a level "has ended" when all lower ones have too.
    return _Levels(n=n, ready=np.maximum.accumulate(last), made=made, read=np.maximum(read, made))


def _topological(step: LastStep) -> Iterator[int]:
    """Yield for each op one more than the highest level of an op that wrote what it reads or writes."""
    written: dict[int, int] = {}
    for op in step.trace.ops[step.first_op : step.end_op]:
        level = max((written.get(storage, -1) for storage in (*op.reads, *op.writes)), default=-1) + 1
        written.update(dict.fromkeys(op.writes, level))
        yield level
