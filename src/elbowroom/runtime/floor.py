"""What a step holds however its storages move: a budget below that is refused as soon as one step was seen.

Computes: per op, what is allocated when every storage that may leave is away but those that the op itself uses.
Ignores: that copies take time, and where the runtime has control: it is no budget to give, but any below is too small.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from elbowroom.lifetimes import SWAPPABLE, LastStep, last_step, listed
from elbowroom.trace import Trace


def floor_bytes(trace: Trace, min_size_bytes: int) -> int:
    """The least that any plan could hold at its fullest op.

    Args:
        trace: what runs.
        min_size_bytes: smaller storages are kept.
    """
    step = last_step(trace)
    movable = _movable(step, min_size_bytes)
    chosen = np.array(sorted(movable), np.int64)
    sizes = step.storage_bytes[chosen]
    change = np.zeros(len(step.level) + 1, np.int64)
    np.subtract.at(change, step.born[chosen], sizes)
    np.add.at(change, step.gone[chosen], sizes)
    held = step.level + np.cumsum(change[:-1])
    used = np.array([_used_bytes(step, op, movable) for op in range(step.first_op, step.end_op)], np.int64)
    fullest = np.maximum.reduceat(held, step.point_of[:-1])
    return int((fullest + used).max())


def _movable(step: LastStep, min_size_bytes: int) -> frozenset[int]:
    """Storages that a plan may have away at some time."""
    saved = {save.storage for save in step.saves if step.trace.storages[save.storage].category in SWAPPABLE}
    windows = set(listed(step.storage[len(step.saves) :]))
    return frozenset(s for s in saved | windows if step.trace.storages[s].size_bytes >= min_size_bytes)


def _used_bytes(step: LastStep, op: int, movable: Collection[int]) -> int:
    """What an op uses of these; results that it makes while it runs may not be there all the time."""
    found = step.trace.ops[op]
    before = {s for s in found.reads if s in movable}
    return sum(int(step.storage_bytes[s]) for s in before if step.born[s] <= step.point_of[op - step.first_op])
