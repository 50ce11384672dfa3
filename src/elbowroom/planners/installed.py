"""Planners of other packages, which name them as entry points of the group elbowroom.planners."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import cast, final

from elbowroom.notices import warn
from elbowroom.planners.problem import Planner

GROUP = "elbowroom.planners"


@final
class Planners(MutableMapping[str, Planner]):
    """Planners by name: elbowroom's own, then those of other packages.

    The latter are loaded at the first request for a name that is not elbowroom's own, or for all names. So code of
    other packages does not run while elbowroom is imported.
    """

    def __init__(self, own: Mapping[str, Planner]) -> None:
        self._found = dict(own)
        self._is_whole = False

    def _whole(self) -> dict[str, Planner]:
        if not self._is_whole:
            self._is_whole = True
            self._found |= installed(self._found)
        return self._found

    def __getitem__(self, name: str) -> Planner:
        return self._found[name] if name in self._found else self._whole()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self._whole()

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def __setitem__(self, name: str, planner: Planner) -> None:
        self._found[name] = planner

    def __delitem__(self, name: str) -> None:
        del self._found[name]


def installed(taken: Collection[str]) -> dict[str, Planner]:
    """Return the planners of other packages by name. One that cannot be used is left out with a warning.

    Args:
        taken: names of elbowroom's own planners.
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
