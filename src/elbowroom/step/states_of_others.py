"""States and gradients of others: those that a step neither uses nor frees, as another optimizer steps their net.

Where optimizers step in turn, a run has them away in such a step, if its plan has no room for them: Note: [Gradients of
others] in engine/gradients.py. A step that is recorded while they are away has none in its trace.
"""

from __future__ import annotations

from collections.abc import Collection

from elbowroom.step.idle_windows import STATES, parts_of
from elbowroom.step.last_step import LastStep, is_lasting, last_step
from elbowroom.step.workspaces import without_storages
from elbowroom.trace import Trace


def idle_storages(step: LastStep) -> list[int]:
    """Return the optimizer states and gradients that are allocated all through the step, and that nothing uses."""
    trace, inside = step.trace, range(step.first_op, step.end_op)
    used = {storage for op in inside for storage in (*trace.ops[op].reads, *trace.ops[op].writes)}
    used.update(storage for part in parts_of(trace, trace.steps[-1]) for storage in part.storages)
    lasting = (s for s, known in enumerate(trace.storages) if known.category in STATES and is_lasting(step, s))
    return [storage for storage in lasting if storage not in used]


def without_others(trace: Trace) -> Trace:
    """Return a captured trace without the states and gradients of others, as far as a run could move them."""
    movable = {storage for part in trace.parts for storage in part.storages}
    return without_storages(trace, movable.intersection(idle_storages(last_step(trace))))


def without_unused(trace: Trace, others: Collection[int]) -> Trace:
    """Return a recorded trace without those of some storages that nothing uses, saves or frees."""
    if not others:
        return trace
    used = {storage for op in trace.ops for storage in (*op.reads, *op.writes)}
    used.update(storage for part in trace.parts for storage in part.storages)
    used.update(save.storage for save in trace.saves)
    used.update(event.storage for event in trace.events if event.size_bytes < 0)
    return without_storages(trace, {*others} - used)
