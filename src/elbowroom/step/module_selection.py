"""Module selection: which saved storages a plan may move, by the modules that made them.

A pattern is a glob on the path of a module, such as "ResNet.layer1.0.conv2". The class of the outermost module may be
left out. A module that matches selects all modules inside it. A storage that is not selected stays, and no recipe drops
it: it is treated as one that something else holds all the time.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from elbowroom.errors import UsageError
from elbowroom.files.field_rules import shown
from elbowroom.step.last_step import LastStep

NAMES_SHOWN = 3
"""Number of modules that an error names if a pattern matches no module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Patterns of modules.

    Attributes:
        include: only storages that these modules made may move; empty for all.
        exclude: storages that these modules made stay, even if they are included.
        known: paths of further modules that exist but that a step may not call.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def allows(self, path: str) -> bool:
        """Return whether the storages that a module made may move."""
        included = not self.include or any(_matches(pattern, path) for pattern in self.include)
        return included and not any(_matches(pattern, path) for pattern in self.exclude)

    def check(self, paths: Iterable[str]) -> None:
        """Raise UsageError for a pattern that matches no module; the error names modules with similar names."""
        paths = sorted({*self.known, *(path for path in paths if path)})
        for name, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(_matches(pattern, path) for path in paths):
                    raise UsageError(
                        f"{name}: given {shown(pattern)}, which no module matches; allowed are globs on paths of "
                        f"modules, such as 'layer1.*'; {_near(pattern, paths)}"
                    )


ALL_MODULES = Selection()
"""The selection of all modules."""


def selection(
    include: str | Sequence[str] = (), exclude: str | Sequence[str] = (), known: Iterable[str] = ()
) -> Selection:
    """Make a selection from patterns as people give them: one or several.

    Raises:
        UsageError: a pattern is not a text, or is empty.
    """
    return Selection(
        include=_patterns("include", include), exclude=_patterns("exclude", exclude), known=frozenset(known)
    )


def selected(step: LastStep, chosen: Selection) -> LastStep:
    """Return a step in which only selected storages may move.

    Raises:
        UsageError: a pattern matches no module.
    """
    if not chosen:
        return step
    modules = [op.module for op in step.trace.ops]
    chosen.check(modules)
    allowed = {path: chosen.allows(path) for path in set(modules)} | {"": chosen.allows("")}
    made_in = {event.storage: modules[event.op] for event in step.trace.events if event.size_bytes > 0 <= event.op}
    stay = [n for n, save in enumerate(step.saves) if not allowed[made_in.get(save.storage, "")]]
    saves = [replace(save, idle_from=None) if n in set(stay) else save for n, save in enumerate(step.saves)]
    idle_from = step.idle_from.copy()
    idle_from[stay] = step.end_op
    borders = np.union1d(step.borders, step.point_of[-1:])
    return replace(
        step,
        saves=tuple(saves),
        idle_from=idle_from,
        borders=borders,
        slot_peak=np.maximum.reduceat(step.level, borders),
    )


def _matches(pattern: str, path: str) -> bool:
    return any(fnmatchcase(each, pattern) for each in _names(path))


def _names(path: str) -> Iterator[str]:
    """Yield a path and those of the modules around it, each with the outermost module and without it."""
    root, _, inner = path.partition(".")
    yield root
    parts = inner.split(".") if inner else []
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        yield name
        yield f"{root}.{name}"


def _near(pattern: str, paths: Sequence[str]) -> str:
    names = sorted({name for path in paths for name in _names(path)})
    near = difflib.get_close_matches(pattern[:80], names, n=NAMES_SHOWN, cutoff=0.3)
    return f"near are {', '.join(near)}" if near else f"there are {', '.join(names[:NAMES_SHOWN]) or 'none'}"


def _patterns(name: str, given: object) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if isinstance(patterns, (list, tuple)):
        texts = tuple(each for each in patterns if isinstance(each, str) and each)  # pyright: ignore[reportUnknownVariableType]
        if len(texts) == len(patterns):  # pyright: ignore[reportUnknownArgumentType]
            return texts
    raise UsageError(
        f"{name}: given {shown(given)}; allowed is a glob on paths of modules such as 'layer1.*', or several"
    )
