"""Steps of nearby sizes: a shorter text or a smaller image follows the plan of a somewhat larger one.

Note: [Nearby sizes]
If the lengths of texts vary, hardly a step has the shapes of another one. Each would be observed, all of it swapped. So
a step may follow the plan of a known kind. No input may be larger than in that kind, or much smaller. The same storages
leave and come back at the same ticks, and no storage is larger. The step moves what it has saved itself, so its numbers
do not depend on the likeness. The bytes that it holds do.

Each save is compared by its dtype and, roughly, its size. At the end of the step the count of saves is compared. What
the device held is compared with the budget. A step that was not alike is observed when it comes again. Recomputes and
algorithms were proven and measured for one size. So only their own kind of step follows a plan with these.

Where no known kind is near, one is made up: Note: [Scaled traces] in scaled_traces.py. Its sizes are rounded up, so
that many steps follow one plan. If that plan does not meet the budget, one for exactly these sizes may.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import permutations
from math import ceil, log
from typing import Any, NamedTuple, final

from elbowroom.run.scaled_traces import Sized, scaled
from elbowroom.run.step_kinds import ALIKE_SHARE, Signature, StepKind
from elbowroom.trace import Trace

STEP_SHARE = 0.9
"""Ratio of neighbouring sizes to which those of made up kinds are rounded up."""
COMPARED = 4
"""Most recorded kinds that are compared, the nearest ones, to find two that differ in sizes alone."""


class Target(NamedTuple):
    """Steps of one form, and of sizes for which a kind may be made up.

    Attributes:
        form: signature of the steps without the sizes of inputs.
        sizes: these sizes.
    """

    form: Hashable
    sizes: tuple[int, ...]


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
        self._made_up: dict[Target, StepKind] = {}

    def learnt(self, key: Hashable) -> None:
        """Note that a kind of step of this signature is known now."""
        form, sizes = _form_and_sizes(key)
        self._of_form.setdefault(form, {})[sizes] = key

    def forgotten(self, key: Hashable) -> None:
        """Note that no kind of step of this signature is known any more."""
        form, sizes = _form_and_sizes(key)
        self._of_form.get(form, {}).pop(sizes, None)

    def made_up(self, target: Target, kind: StepKind) -> None:
        """Note a kind for steps that were not recorded."""
        self._made_up[target] = kind

    def of(self, key: Hashable) -> StepKind | None:
        """Return the smallest kind that is near, or None. Kinds that share a signature are left out."""
        form, sizes = _form_and_sizes(key)
        for others, kinds in sorted(self._kinds(form), key=lambda each: each[0]):
            shrinks = [mine / theirs if theirs else 1 for mine, theirs in zip(sizes, others, strict=True)]
            if not shrinks or min(shrinks) < ALIKE_SHARE or max(shrinks) > 1:
                continue
            least_bytes = min((size_bytes for size_bytes, _ in kinds[0].schedule.saved), default=None)
            # attention saves the square of a length
            seen = least_bytes is None or least_bytes * min(shrinks) ** 2 >= self._min_size_bytes
            if len(kinds) == 1 and seen:
                return kinds[0].for_nearby()
        return None

    def targets(self, key: Hashable) -> Iterator[Target]:
        """Yield what a kind may be made up for that a step of this signature follows, the best first.

        Only sizes that differ between known kinds are rounded: all others never change.
        """
        form, sizes = _form_and_sizes(key)
        known = [*self._of_form.get(form, {}), sizes]
        if len(known) < 3:
            return
        changes = [len(set(column)) > 1 for column in zip(*known, strict=True)]
        rounded = tuple(_rounded(size) if may else size for size, may in zip(sizes, changes, strict=True))
        yield Target(form, rounded)
        if rounded != sizes:
            yield Target(form, sizes)

    def scaled(self, target: Target) -> Trace | None:
        """Return the trace of such steps; None if it cannot be known."""
        near = sorted(self._recorded(target.form), key=lambda each: _distance(each.sizes, target.sizes))
        for mine, other in permutations(near[:COMPARED], 2):
            if (trace := scaled(target.sizes, mine, other, self._min_size_bytes)) is not None:
                return trace
        return None

    def _recorded(self, form: Hashable) -> Iterator[Sized]:
        for sizes, key in self._of_form.get(form, {}).items():
            if len(kinds := self._known[key]) == 1:
                yield Sized(sizes, kinds[0].trace)

    def _kinds(self, form: Hashable) -> Iterator[tuple[tuple[int, ...], Sequence[StepKind]]]:
        for sizes, key in self._of_form.get(form, {}).items():
            yield sizes, self._known[key]
        for (of_form, sizes), kind in self._made_up.items():
            if of_form == form:
                yield sizes, [kind]


def _rounded(size: int) -> int:
    """Round a size up to one of few."""
    power = ceil(log(max(size, 1)) / -log(STEP_SHARE))
    return max(size, int(STEP_SHARE**-power))


def _distance(of: tuple[int, ...], to: tuple[int, ...]) -> float:
    return max((abs(log(max(mine, 1) / max(theirs, 1))) for mine, theirs in zip(of, to, strict=True)), default=0.0)


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
