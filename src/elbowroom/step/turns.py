"""Turns: what a plan says of each saved storage, looked up once per plan in place of once per tick."""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.machine import TierName
from elbowroom.step.schedule import Action, Schedule


class Turn(NamedTuple):
    """The n-th saved storage of a step.

    Attributes:
        tier: where it goes when it is saved, None where it is not swapped.
        on_save: what to do then.
        on_read: by read, what to do before it.
    """

    tier: TierName | None
    on_save: Action | None
    on_read: tuple[Action | None, ...]


def turns_of(schedule: Schedule) -> tuple[Turn, ...]:
    """The turns of a step's saves, in their order."""
    tiers = dict(zip(schedule.swapped, schedule.tiers, strict=True))
    most: dict[int, int] = {}
    for n, k in schedule.on_read:
        most[n] = max(most.get(n, 0), k + 1)
    return tuple(
        Turn(
            tiers.get(n),
            schedule.on_save.get(n),
            tuple(schedule.on_read.get((n, k)) for k in range(most.get(n, 0))),
        )
        for n in range(len(schedule.saved))
    )
