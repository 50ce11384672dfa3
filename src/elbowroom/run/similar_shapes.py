"""Steps of nearby sizes: a shorter text or a smaller image follows the plan of a somewhat larger one.

Note: [Nearby sizes]
If the lengths of texts vary, hardly a step has the shapes of another one. Each would be observed, all of it swapped. So
a step may follow the plan of a known kind. No input may be larger than in that kind, or much smaller. The same storages
leave and come back at the same ticks, and no storage is larger. The step moves what it has saved itself, so its numbers
do not depend on the likeness. The bytes that it holds do.

Each save is compared by its dtype and, roughly, its size. At the end of the step the count of saves is compared. What
the device held is compared with the budget. A step that was not alike is observed when it comes again. Recomputes and
algorithms were proven and measured for one size. So only their own kind of step follows a plan with these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, final

from elbowroom.run.step_kinds import ALIKE_SHARE, Signature, StepKind


@final
class Nearby:
    """Finds the kind of step that a step of another signature may follow.

    Args:
        known: all kinds of steps that were observed, by signature.
        min_size_bytes: smaller storages are not seen. One that shrinks below this would shift the order of others.
    """

    def __init__(self, known: Mapping[Hashable, Sequence[StepKind]], min_size_bytes: int) -> None:
        self._known = known
        self._min_size_bytes = min_size_bytes
        self._of_form: dict[Hashable, dict[tuple[int, ...], Hashable]] = {}

    def learnt(self, key: Hashable) -> None:
        """Note that a kind of step of this signature is known now."""
        form, sizes = _form_and_sizes(key)
        self._of_form.setdefault(form, {})[sizes] = key

    def of(self, key: Hashable) -> StepKind | None:
        """Return the smallest known kind that is near, or None. Kinds that share a signature are left out."""
        form, sizes = _form_and_sizes(key)
        for others, key_of_others in sorted(self._of_form.get(form, {}).items(), key=lambda each: each[0]):
            shrinks = [mine / theirs if theirs else 1 for mine, theirs in zip(sizes, others, strict=True)]
            if not shrinks or min(shrinks) < ALIKE_SHARE or max(shrinks) > 1:
                continue
            kinds = self._known[key_of_others]
            least_bytes = min((size_bytes for size_bytes, _ in kinds[0].schedule.saved), default=self._min_size_bytes)
            # attention saves the square of a length
            if len(kinds) == 1 and least_bytes * min(shrinks) ** 2 >= self._min_size_bytes:
                return kinds[0].for_nearby()
        return None


def _form_and_sizes(key: Hashable) -> tuple[Hashable, tuple[int, ...]]:
    """Split a signature into its form, without the sizes of the module's inputs, and these sizes."""
    sizes: list[int] = []

    def form(value: Any) -> Hashable:
        if isinstance(value, tuple):
            return tuple(form(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
        if type(value) is int:  # not a bool
            sizes.append(value)
            return int
        return value

    if not isinstance(key, Signature):  # no module is called
        return None, ()
    return (key.module, form(key.shapes)), tuple(sizes)
