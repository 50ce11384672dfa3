"""Memory by module: how many bytes of some storages each module owns. Cost: linear in the ops and events."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from elbowroom.step.owners import owners_of
from elbowroom.trace import Trace

MODULES_SHOWN = 10


class ModuleShare(NamedTuple):
    """Bytes of one module at the peak; modules that differ only in the number of a repeated block count as one.

    Attributes:
        module: its path, with numbers of repeated blocks as "*"; "" for storages that belong to no module.
        modules: number of modules that count as this one.
        size_bytes: requested bytes.
        source_line: the user's line that made, or first saved, storages of no module; "" if it is not known.
    """

    module: str
    modules: int
    size_bytes: int
    source_line: str = ""


def shares_of(trace: Trace, held: Sequence[int]) -> tuple[tuple[ModuleShare, ...], int]:
    """Return the bytes of some storages by module: the `MODULES_SHOWN` largest rows, and the bytes of all others."""
    found, containers = owners_of(trace), _containers(trace)
    total: dict[tuple[str, str], int] = {}
    members: dict[tuple[str, str], set[str]] = {}
    for storage in held:
        row = block_name(found.modules[storage], containers), found.lines.get(storage, "")
        total[row] = total.get(row, 0) + trace.storages[storage].size_bytes
        members.setdefault(row, set()).add(found.modules[storage])
    ranked = sorted(total, key=lambda row: (-total[row], row))
    names = {row: row[0] if len(of_row) > 1 else min(of_row) for row, of_row in members.items()}
    shown = tuple(ModuleShare(names[row], len(members[row]), total[row], row[1]) for row in ranked[:MODULES_SHOWN])
    return shown, sum(total[row] for row in ranked[MODULES_SHOWN:])


def block_name(module: str, containers: Container[str] = ()) -> str:
    """Write a module's path with the numbers of its blocks as "*"; its own number stays unless it is a container.

    >>> block_name("GPT.h.11.mlp.proj"), block_name("VGG.features.3"), block_name("GPT.h.11", {"GPT.h.11"})
    ('GPT.h.*.mlp.proj', 'VGG.features.3', 'GPT.h.*')
    """
    *above, own = module.split(".")
    if module in containers:
        above, own = [*above, own], ""
    starred = ["*" if part.isdigit() else part for part in above]
    return ".".join([*starred, own] if own else starred)


def _containers(trace: Trace) -> set[str]:
    """Return the modules that have modules in them."""
    found: set[str] = set()
    for module in {op.module for op in trace.ops}:
        while "." in module:
            module = module.rpartition(".")[0]  # noqa: PLW2901  from the module up to its root
            found.add(module)
    return found
