"""Memory tree: what is held at one moment, by module path as a tree, and by the user's line. Cost: linear in the trace.

A module's bytes are those of the modules in it and its own, which stand as leaves: one for each category. A chain of
modules with nothing of their own is one node. Parts that are too small to draw are one node in their module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from elbowroom.step.owners import owners_of
from elbowroom.trace import Category, Trace
from elbowroom.units import NONE

LEAST_SHARE = 1 / 400
"""Least share of all bytes that a node of its own has."""
OUTSIDE = "outside modules"

Held = Sequence[tuple[int, int]]
"""(Storage, bytes) at one moment; `NONE` is a workspace that the trace has no storage for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNode:
    """A module, a category of a module's own storages, or several small ones of these.

    Attributes:
        name: its path below the node above it, or the category.
        path: path of the module.
        size_bytes: bytes in all.
        category: category of a leaf; None for a module, and for several small parts.
        parts: what is in it, largest first; empty for a leaf.
    """

    name: str
    path: str
    size_bytes: int
    category: Category | None = None
    parts: tuple[MemoryNode, ...] = ()

    def walk(self, depth: int = 0) -> Iterator[tuple[int, MemoryNode]]:
        """Yield (depth, node) of this node and all below it, each before its parts."""
        yield depth, self
        for part in self.parts:
            yield from part.walk(depth + 1)


class _Sums:
    """Bytes of one module while they are summed up: its own by category, and the modules in it."""

    def __init__(self) -> None:
        self.own: dict[Category, int] = {}
        self.below: dict[str, _Sums] = {}

    def total(self) -> int:
        return sum(self.own.values()) + sum(each.total() for each in self.below.values())


def memory_tree(trace: Trace, held: Held) -> MemoryNode:
    """Return what is held by module path; the root has all bytes."""
    root, modules = _Sums(), owners_of(trace).modules
    for storage, size_bytes in held:
        path = "" if storage == NONE else modules[storage]
        at = root
        for name in path.split(".") if path else (OUTSIDE,):
            at = at.below.setdefault(name, _Sums())
        category = _category(trace, storage)
        at.own[category] = at.own.get(category, 0) + size_bytes
    return _node("all", "", root, least_bytes=int(root.total() * LEAST_SHARE))


def module_bytes(trace: Trace, held: Held) -> dict[str, int]:
    """Return what is held by the module that owns it; "" for what no module owns."""
    modules, found = owners_of(trace).modules, dict[str, int]()
    for storage, size_bytes in held:
        path = "" if storage == NONE else modules[storage]
        found[path] = found.get(path, 0) + size_bytes
    return found


def line_bytes(trace: Trace, held: Held) -> dict[str, int]:
    """Return what is held by the user's line that made it, largest first; "" where no line is known.

    A trace without lines has an empty answer.
    """
    if not trace.op_source_lines:
        return {}
    made = {event.storage: event.op for event in trace.events if event.size_bytes > 0 and event.op >= 0}
    by_owner, found = owners_of(trace).lines, dict[str, int]()
    for storage, size_bytes in held:
        line = trace.source_line(made.get(storage, -1)) or by_owner.get(storage, "")
        found[line] = found.get(line, 0) + size_bytes
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def _category(trace: Trace, storage: int) -> Category:
    return "workspace" if storage == NONE else trace.storages[storage].category


def _node(name: str, path: str, sums: _Sums, *, least_bytes: int) -> MemoryNode:
    while path and not sums.own and len(sums.below) == 1:
        ((only, sums),) = sums.below.items()
        name, path = f"{name}.{only}", f"{path}.{only}"
    parts = [
        _node(each, f"{path}.{each}" if path else each, of_each, least_bytes=least_bytes)
        for each, of_each in sums.below.items()
    ]
    parts += [
        MemoryNode(name=category.replace("_", " "), path=path, size_bytes=size_bytes, category=category)
        for category, size_bytes in sums.own.items()
    ]
    return MemoryNode(name=name, path=path, size_bytes=sums.total(), parts=_ranked(path, parts, least_bytes))


def _ranked(path: str, parts: Iterable[MemoryNode], least_bytes: int) -> tuple[MemoryNode, ...]:
    """Return parts by size, largest first, with those below the least size as one."""
    drawn = sorted(parts, key=lambda each: (-each.size_bytes, each.name))
    small = [each for each in drawn if each.size_bytes < least_bytes]
    if len(small) < 2:
        return tuple(drawn)
    rest = MemoryNode(name=f"{len(small)} smaller", path=path, size_bytes=sum(each.size_bytes for each in small))
    return (*drawn[: len(drawn) - len(small)], rest)
