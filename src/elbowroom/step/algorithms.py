"""Algorithms: the last step if some of its ops run with other algorithms that the trace offers.

An algorithm changes the time of its op and its workspace: the largest storage of category "workspace" that the op
allocates and frees. If the op has none, the workspace is added at the point at which the op holds the most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from elbowroom.plan import Algorithm
from elbowroom.step.last_step import LastStep, op_label
from elbowroom.trace import Choice


def with_algorithms(step: LastStep, algorithms: Sequence[Algorithm]) -> LastStep:
    """Return the last step with other algorithms, each of which must be offered. Cost: linear in the step."""
    chosen = {algorithm.op: choice_of(step, algorithm) for algorithm in algorithms}
    return with_choices(step, {op: choice for op, choice in chosen.items() if choice is not None})


def with_choices(step: LastStep, choices: Mapping[int, Choice]) -> LastStep:
    """Return the last step with the time and the workspace of `choices`, by op; they need not be offered."""
    if not choices:
        return step
    op_ns, sizes, scratch = np.diff(step.at_ns), step.storage_bytes.copy(), dict(step.scratch)
    change = np.zeros(len(step.level) + 1, np.int64)
    for op, chosen in choices.items():
        op_ns[op - step.first_op] = chosen.duration_ns
        storage = workspace_of(step, op)
        if storage is not None:
            change[step.born[storage]] += chosen.workspace_bytes - sizes[storage]
            change[step.gone[storage]] -= chosen.workspace_bytes - sizes[storage]
            sizes[storage] = chosen.workspace_bytes
        elif chosen.workspace_bytes:
            begin, end = (int(point) for point in step.point_of[op - step.first_op : op - step.first_op + 2])
            within = int(step.level[begin + 1 : end].argmax()) + 1 if end > begin + 1 else 0
            scratch[op] = (within, chosen.workspace_bytes)
            change[begin + within] += chosen.workspace_bytes
            change[begin + within + 1] -= chosen.workspace_bytes
    level = step.level + np.cumsum(change[:-1])
    return replace(
        step,
        at_ns=np.concatenate([np.zeros(1, np.int64), np.cumsum(op_ns)]),
        level=level,
        slot_peak=np.maximum.reduceat(level, step.borders),
        storage_bytes=sizes,
        scratch=scratch,
    )


def choice_of(step: LastStep, algorithm: Algorithm) -> Choice | None:
    """Return the choice that an algorithm names; None if its op of the last step does not offer it."""
    if not step.first_op <= algorithm.op < step.end_op:
        return None
    return next((choice for choice in step.trace.ops[algorithm.op].choices if choice.name == algorithm.choice), None)


def workspace_of(step: LastStep, op: int) -> int | None:
    """Return the storage that is an op's workspace; None if it has none."""
    begin, end = (int(point) for point in step.point_of[op - step.first_op : op - step.first_op + 2])
    found = [
        (size_bytes, storage)
        for storage, size_bytes in step.events_of(op)
        if size_bytes > 0
        and step.trace.storages[storage].category == "workspace"
        and begin < step.born[storage] < step.gone[storage] < end
    ]
    return max(found)[1] if found else None


def why_not_chosen(step: LastStep, algorithm: Algorithm) -> str | None:
    """Say why an algorithm cannot be chosen, as a clause; None if it can."""
    if not step.first_op <= algorithm.op < step.end_op:
        return f"op {algorithm.op} is not in the last step (ops {step.first_op} to {step.end_op - 1})"
    if choice_of(step, algorithm) is None:
        offered = [choice.name for choice in step.trace.ops[algorithm.op].choices]
        names = f"offers {', '.join(offered)}" if offered else "offers no algorithms"
        return f"{op_label(step.trace, algorithm.op)} {names}"
    return None
