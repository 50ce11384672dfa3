"""What has been learnt of the steps of a training: one `Known` per signature."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from elbowroom.lifetimes import last_step, listed
from elbowroom.machine import Machine
from elbowroom.moves import moves_of_plan
from elbowroom.plan import Plan
from elbowroom.runtime.ranges import bytes_for
from elbowroom.runtime.reserving import Course
from elbowroom.schedule import Schedule
from elbowroom.trace import Trace


@dataclass(slots=True, eq=False)
class Known:
    """One kind of step and what to do in it.

    Attributes:
        trace, course, schedule: as observed, planned, compiled.
        machine: the links as measured while observing.
        refined: whether the trace is of a steady step, and its durations of a step under a plan.
    """

    trace: Trace
    course: Course
    schedule: Schedule
    machine: Machine
    refined: bool
    _swapped: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._swapped = frozenset(self.schedule.swapped)

    @property
    def plan(self) -> Plan:
        """What is swapped."""
        return self.course.plan

    @property
    def swapped(self) -> frozenset[int]:
        """The saves that are swapped."""
        return self._swapped

    def agrees(self, saved: tuple[tuple[int, str], ...]) -> bool:
        """Whether a step that has saved these storages so far may be of this kind."""
        return saved == self.schedule.saved[: len(saved)]


def lower_bytes(known: Known) -> int:
    """What the tier below must have to hold all that the plan of a step swaps, as long as it does."""
    step, plan = last_step(known.trace), known.plan
    moves = moves_of_plan(step, plan)
    begin, end = step.points(step.saved_at[moves.n]), step.gone[step.storage_of(moves.n)]
    return bytes_for(zip(listed(begin), listed(end), listed(moves.size), strict=True))


def signature(module: torch.nn.Module | None, args: Any) -> Hashable:
    """What tells kinds of steps apart before they begin: the outermost module, its mode and the shapes it is given.

    Keyword arguments do not reach torch's global hooks; steps that differ only there are told apart as they run.
    """
    if module is None:
        return None
    # By its first parameter: a slice of a Sequential is a new module each time.
    return (type(module), id(next(module.parameters(), None)), module.training, _shapes(args))


def _shapes(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, (tuple, list)):
        return tuple(_shapes(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):
        return tuple((str(key), _shapes(each)) for key, each in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return type(value).__name__
