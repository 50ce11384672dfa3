"""What has been learnt of the steps of a training: one `Known` per signature."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elbowroom.lifetimes import last_step, listed
from elbowroom.machine import Machine, TierName
from elbowroom.moves import moves_of_plan, tiers_of_plan
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
        in_parts: whether the steps of optimizers are carried out in parts.
    """

    trace: Trace
    course: Course
    schedule: Schedule
    machine: Machine
    refined: bool
    in_parts: bool = False
    _tier_of: dict[int, TierName] = field(init=False)

    def __post_init__(self) -> None:
        self._tier_of = dict(zip(self.schedule.swapped, self.schedule.tiers, strict=True))

    @property
    def plan(self) -> Plan:
        """What is swapped."""
        return self.course.plan

    @property
    def tier_of(self) -> Mapping[int, TierName]:
        """Where what is away goes, by window: those of saves, and of optimizer states."""
        return self._tier_of

    def agrees(self, saved: tuple[tuple[int, str], ...]) -> bool:
        """Whether a step that has saved these storages so far may be of this kind."""
        return saved == self.schedule.saved[: len(saved)]


def lower_bytes(known: Known) -> dict[TierName, int]:
    """What the tiers below must have to hold all that the plan of a step swaps, as long as it does."""
    step, plan = last_step(known.trace), known.plan
    moves = moves_of_plan(step, plan)
    points = step.points(step.saved_at[moves.n])
    points[moves.n >= len(step.saves)] = 0  # a state is there in the next step too
    begin, end = listed(points), listed(step.gone[step.storage_of(moves.n)])
    stays: dict[TierName, list[tuple[int, int, int]]] = {}
    for tier, *stay in zip(tiers_of_plan(step, plan, moves), begin, end, listed(moves.size), strict=True):
        stays.setdefault(tier, []).append((stay[0], stay[1], stay[2]))
    return {tier: bytes_for(found) for tier, found in stays.items()}


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
