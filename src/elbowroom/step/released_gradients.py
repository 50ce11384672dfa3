"""Released gradients: a gradient that no op uses any more may be away until the training frees it.

A part of an optimizer's step is the last to use its gradients. Or it is an accumulation, as in adversarial nets: the
generator's backward pass adds to gradients of the discriminator that no optimizer uses. `zero_grad` frees them: later
in the step, between two steps, or in the next step before backward makes new ones. So such a window ends where the
bytes would have been freed, and nothing is copied back. In the last case the trace has two storages: the gradient of
this step, and that of the step before, which it frees. Both are away, each on its side of the step's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elbowroom.step.idle_windows import OF_ONE_OP, Window, ops_using, parts_of
from elbowroom.trace import Part, Step, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """When storages are allocated in a step.

    Attributes:
        born: per storage, the point from which it is allocated; 0 if it was allocated before the step.
        gone: per storage, the point from which it is freed; `end` if it outlives the step.
        end: number of points of the step.
    """

    born: Sequence[int]
    gone: Sequence[int]
    end: int


def replaced_gradients(trace: Trace, step: Step, lives: Lives) -> dict[int, int]:
    """Return by gradient that outlives the step the one of the step before that this step frees: of the same size."""
    last = _last_parts(trace, step)
    old: dict[int, list[int]] = {}
    found = [s for s, known in enumerate(trace.storages) if known.category == "gradient" and last]
    freed = [s for s in found if not lives.born[s] and 0 < lives.gone[s] < lives.end]
    used = ops_using(trace, step, set(freed))
    for storage in sorted(freed, key=lambda each: lives.gone[each]):
        if not used[storage]:
            old.setdefault(trace.storages[storage].size_bytes, []).append(storage)
    new = (s for s in sorted(last, key=lambda each: lives.born[each]) if lives.born[s] and lives.gone[s] == lives.end)
    pairs = ((storage, old.get(trace.storages[storage].size_bytes)) for storage in new)
    return {storage: same.pop(0) for storage, same in pairs if same}


def released_windows(
    trace: Trace, step: Step, lives: Lives, point_of: Sequence[int], replaced: Mapping[int, int]
) -> Iterator[Window]:
    """Yield the windows from the last part or accumulation that uses a gradient until it is freed.

    Args:
        trace: the trace.
        step: its last step.
        lives: when its storages are allocated.
        point_of: per position of the step, its point.
        replaced: see `replaced_gradients`.
    """
    last = _last_parts(trace, step)
    used = ops_using(trace, step, set(last))
    for storage, part in last.items():
        if not lives.born[storage] or used[storage][-1:] >= [part.end_op]:
            continue
        freed = lives.gone[storage]
        outlives = freed == lives.end
        if outlives:
            freed = lives.gone[replaced[storage]] if storage in replaced else 0
        position = next((k for k, point in enumerate(point_of) if point >= freed), len(point_of) - 1) + step.first_op
        if (position < part.end_op) if outlives else (position > part.end_op):
            yield Window(storage, part.end_op, position, freed)


def _last_parts(trace: Trace, step: Step) -> dict[int, Part]:
    """Return by gradient the last part of an optimizer's step, or accumulation, that uses it."""
    return {
        storage: part
        for part in parts_of(trace, step)
        for storage in (() if part.kind in OF_ONE_OP else part.storages)
        if trace.storages[storage].category == "gradient"
    }
