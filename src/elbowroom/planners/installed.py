"""Planners of other packages: those that name one as an entry point of the group elbowroom.planners."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import entry_points
from typing import cast

from elbowroom.notices import warn
from elbowroom.planners.problem import Planner

GROUP = "elbowroom.planners"


def installed(taken: Collection[str]) -> dict[str, Planner]:
    """The planners of other packages by name. One that cannot be used is left out with a warning.

    Args:
        taken: names that are elbowroom's own.
    """
    found: dict[str, Planner] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in taken or entry.name in found:
            _warn(entry.name, entry.value, "the name is taken; allowed is a name of its own")
            continue
        try:
            planner = entry.load()
        except Exception as problem:  # noqa: BLE001  code of others; without it elbowroom works as before
            _warn(entry.name, entry.value, f"{type(problem).__name__}: {problem}; mend or uninstall its package")
            continue
        if callable(planner):
            found[entry.name] = cast("Planner", planner)
        else:
            _warn(entry.name, entry.value, "it cannot be called; allowed is a function of one Problem")
    return found


def _warn(name: str, value: str, why: str) -> None:
    warn(f"elbowroom: the planner {name!r} ({value}) is left out: {why}", UserWarning)
