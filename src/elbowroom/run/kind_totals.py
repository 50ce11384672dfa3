"""Memory of each kind of step: with everything kept, as planned, as measured. The largest kind decides for a run.

A recorded step was measured. A step that keeps everything holds what its trace says, as that was measured of the same
ops. Other steps follow a plan that a recorded step of the kind has followed before. On CUDA the allocator itself
reports the most that it reserved, whatever ran.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import final

from elbowroom.run.step_kinds import Signature, StepKind
from elbowroom.units import format_bytes

COUNTED_SHARE = 100
"""The budget counts as held up to 1/COUNTED_SHARE beyond it: even a list of losses takes that."""
NEW_SHARE = 0.5
"""Share of the steps: if more of them were the only ones of their kind, the training's steps differ."""
FEW = 4
"""So few steps do not say whether they differ."""
SHOWN = 4
"""Most kinds of steps in a summary: the largest ones."""


@dataclass(slots=True, kw_only=True)
class Kind:
    """One kind of step.

    Attributes:
        inputs: shapes of the inputs of its outermost module.
        steps: number of its steps that ended.
        keep_all_bytes: bytes that keeping everything takes, as a budget counts them; 0 if no step was recorded.
        planned_peak_bytes: peak of the last plan; 0 if there was none.
        measured_peak_allocated_bytes: the most that its steps held; 0 if none was recorded.
    """

    inputs: str
    steps: int = 0
    keep_all_bytes: int = 0
    planned_peak_bytes: int = 0
    measured_peak_allocated_bytes: int = 0


@final
class Kinds:
    """Kinds of steps of a run, by signature."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Kind] = {}

    def __iter__(self) -> Iterator[Kind]:
        """Iterate over the kinds of which a step has ended, those that need most first."""
        found = [kind for kind in self._by_key.values() if kind.steps]
        return iter(sorted(found, key=lambda kind: -max(kind.keep_all_bytes, kind.measured_peak_allocated_bytes)))

    def of(self, key: Hashable) -> Kind:
        """Return the kind of a signature."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Kind(inputs=_inputs(key))
        return found

    def recorded(self, key: Hashable, held_bytes: int, keep_all_bytes: int) -> None:
        """Note what a recorded step held, and what it would have held with everything kept."""
        kind = self.of(key)
        kind.measured_peak_allocated_bytes = max(kind.measured_peak_allocated_bytes, held_bytes)
        kind.keep_all_bytes = max(kind.keep_all_bytes, keep_all_bytes)

    def ended(self, key: Hashable, followed: StepKind | None) -> None:
        """Count a step that has ended. `followed` is what it followed; None if it was observed."""
        kind = self.of(key)
        kind.steps += 1
        if followed is None:
            return
        kind.planned_peak_bytes = followed.planned_bytes
        kind.keep_all_bytes = kind.keep_all_bytes or followed.keep_all_bytes
        if not (followed.moves or followed.in_parts) and not followed.shared:
            kind.measured_peak_allocated_bytes = max(kind.measured_peak_allocated_bytes, followed.planned_bytes)

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return sum(kind.steps for kind in self._by_key.values())

    @property
    def differ(self) -> bool:
        """Whether most steps had inputs of sizes that no other step had."""
        alone = sum(kind.steps == 1 for kind in self)
        return self.steps > FEW and alone > NEW_SHARE * self.steps

    @property
    def keep_all_bytes(self) -> int:
        """Bytes that keeping everything takes; 0 if no step was recorded."""
        return max((kind.keep_all_bytes for kind in self), default=0)

    @property
    def planned_peak_bytes(self) -> int:
        """The most that the plans of all kinds hold; 0 if there was none."""
        return max((kind.planned_peak_bytes for kind in self), default=0)

    @property
    def measured_peak_bytes(self) -> int:
        """The most that steps of all kinds held; 0 if none was recorded."""
        return max((kind.measured_peak_allocated_bytes for kind in self), default=0)

    def fit(self, budget_bytes: int) -> bool:
        """Whether there is a plan for each kind, and no kind was planned or measured to hold more than the budget."""
        return all(
            kind.planned_peak_bytes
            and not beyond(max(kind.planned_peak_bytes, kind.measured_peak_allocated_bytes), budget_bytes)
            for kind in self
        )

    def lines(self) -> Iterator[str]:
        """Yield lines for the summary, if there are several kinds."""
        kinds = list(self)
        for kind in kinds[:SHOWN] if len(kinds) > 1 else ():
            figures = {
                "keeping everything takes": kind.keep_all_bytes,
                "planned": kind.planned_peak_bytes,
                "held": kind.measured_peak_allocated_bytes,
            }
            said = ", ".join(f"{what} {format_bytes(size)}" for what, size in figures.items() if size)
            yield f"  {kind.steps} step{'s' if kind.steps != 1 else ''} of {kind.inputs}: {said or 'no plan'}"
        if len(kinds) > SHOWN:
            yield f"  and {len(kinds) - SHOWN} smaller kinds of steps"


def beyond(held_bytes: int, budget_bytes: int) -> int:
    """Return the bytes held beyond a budget; 0 if they are less than 1/COUNTED_SHARE of it."""
    more_bytes = held_bytes - budget_bytes
    return more_bytes if more_bytes > uncounted_bytes(budget_bytes) else 0


def uncounted_bytes(budget_bytes: int) -> int:
    """Return the most bytes beyond a budget with which it counts as held."""
    return budget_bytes // COUNTED_SHARE


def _inputs(key: Hashable) -> str:
    if not isinstance(key, Signature):
        return "no module"
    name = getattr(key.module[0], "__name__", "a module") if isinstance(key.module, tuple) else "a module"
    shapes = ", ".join("x".join(map(str, shape)) for shape in _shapes_in(key.shapes))
    return f"{name}({shapes})"


def _shapes_in(value: Hashable) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of the tensors in the arguments that a signature describes."""
    if not isinstance(value, tuple):
        return
    if len(value) == 3 and type(value[2]) is bool and isinstance(value[0], tuple):
        yield value[0]
        return
    for each in value:
        yield from _shapes_in(each)
