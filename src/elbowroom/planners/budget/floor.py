"""floor: the bytes that a step holds however its storages move; no budget below it can be met.

Computes: per op, the allocated bytes when all that may leave is away, except for what the op itself uses.
Ignores: that copies take time, where a run has control, and what an allocator adds. So a budget of these bytes may be
too small. Workspaces of libraries count as 0.
Cost: linear in the events of the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from elbowroom.step.last_step import SWAPPABLE, Ints, LastStep, last_step, listed
from elbowroom.trace import Trace


def floor_bytes(trace: Trace, min_size_bytes: int) -> int:
    """Return the least bytes that any plan could hold at the fullest op of the last step.

    Args:
        trace: the trace; optimizer states and gradients may be away if it has parts for them.
        min_size_bytes: smaller storages are kept.
    """
    step = last_step(trace)
    movable = _movable(step, min_size_bytes)
    held = step.level - _alive(step, _chosen(movable), step.storage_bytes) - _unsure(step)
    fullest = np.maximum.reduceat(held, step.point_of[:-1])
    used = np.array([_used_bytes(step, op, movable) for op in range(step.first_op, step.end_op)], np.int64)
    return int((fullest + used).max())


def _movable(step: LastStep, min_size_bytes: int) -> frozenset[int]:
    """Return the storages that may be away at some time in a plan."""
    saved = {save.storage for save in step.saves if step.trace.storages[save.storage].category in SWAPPABLE}
    windows = set(listed(step.storage[len(step.saves) :]))
    return frozenset(s for s in saved | windows if step.trace.storages[s].size_bytes >= min_size_bytes)


def _chosen(storages: Iterable[int]) -> Ints:
    return np.array(sorted(storages), np.int64)


def _alive(step: LastStep, chosen: Ints, size_bytes: Ints) -> Ints:
    """Return for each point the bytes of some storages that are allocated there."""
    change = np.zeros(len(step.level) + 1, np.int64)
    np.add.at(change, step.born[chosen], size_bytes[chosen])
    np.subtract.at(change, step.gone[chosen], size_bytes[chosen])
    return np.cumsum(change[:-1])


def _unsure(step: LastStep) -> Ints:
    """Return for each point the bytes of workspaces: a run frees them, and torch makes do with less if it must."""
    chosen = _chosen(s for s, each in enumerate(step.trace.storages) if each.category == "workspace")
    return _alive(step, chosen, step.storage_bytes)


def _used_bytes(step: LastStep, op: int, movable: Collection[int]) -> int:
    """Return the bytes that an op reads of these. Its results are left out: they need not exist all the time."""
    before = {s for s in step.trace.ops[op].reads if s in movable}
    return sum(int(step.storage_bytes[s]) for s in before if step.born[s] <= step.point_of[op - step.first_op])
