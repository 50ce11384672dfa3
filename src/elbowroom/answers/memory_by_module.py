"""Which module each storage of a trace belongs to, and how many bytes of some storages each module has.

A storage belongs to the module of the op that made it. What was there before any op, or outlives its op's module, is
traced back to a parameter: a parameter or buffer belongs to the first module whose forward op reads it, optimizer state
to the parameter it was made from, a gradient to the module whose backward made it, else to the parameter it is applied
to. Where none of this says anything, and of workspaces that stay, the owner is "". What has no owner is named by the
user's line that made it, where the trace has it. Cost: linear in the ops and events.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from elbowroom.trace import Category, Op, Trace

MODULES_SHOWN = 10


class ModuleShare(NamedTuple):
    """What one module holds at the peak; modules that differ in the number of a repeated block alone count as one.

    Attributes:
        module: its path, numbers of repeated blocks as "*"; "" for what belongs to none.
        modules: how many modules these are.
        size_bytes: requested bytes.
        source_line: the user's line that made what belongs to no module; "" where it is not known.
    """

    module: str
    modules: int
    size_bytes: int
    source_line: str = ""


def owners_of(trace: Trace) -> tuple[str, ...]:
    """Path of the owning module per storage, "" where it is not known."""
    makers = _makers(trace)
    owners = [""] * len(trace.storages)
    stays = _workspaces_that_stay(trace, makers)
    for storage, op in makers.items():
        owners[storage] = "" if storage in stays else trace.ops[op].module
    _by_first_reader(trace, owners)
    _by_parameter_made_from(trace, makers, owners)
    for op in trace.ops:
        if op.phase == "optimizer":
            _by_pairs(trace, op, owners)
    return tuple(owners)


def _makers(trace: Trace) -> dict[int, int]:
    """By storage, the op that made it."""
    return {event.storage: event.op for event in trace.events if event.size_bytes > 0 and event.op >= 0}


def _lines_of(trace: Trace, held: Sequence[int], owners: Sequence[str]) -> dict[int, str]:
    """The user's line that made each of some storages that belong to no module."""
    if not trace.source_lines:
        return {}
    makers = _makers(trace)
    stays = _workspaces_that_stay(trace, makers)
    ownerless = (storage for storage in held if not owners[storage] and storage not in stays)
    return {storage: trace.source_line(makers.get(storage, -1)) for storage in ownerless}


def _workspaces_that_stay(trace: Trace, makers: dict[int, int]) -> set[int]:
    """Workspaces that outlive the op they were made in: all modules use them, as those of cuBLAS."""
    within = {event.storage for event in trace.events if event.size_bytes < 0 and makers.get(event.storage) == event.op}
    return {s for s in makers if trace.storages[s].category == "workspace" and s not in within}


def _by_first_reader(trace: Trace, owners: list[str]) -> None:
    """Parameters and buffers: whoever made them, the module that computes with them owns them."""
    found: set[int] = set()
    for op in trace.ops:
        if op.phase != "forward" or not op.module:
            continue
        for storage in op.reads:
            if storage not in found and trace.storages[storage].category in ("parameter", "buffer"):
                found.add(storage)
                owners[storage] = op.module


def _by_parameter_made_from(trace: Trace, makers: dict[int, int], owners: list[str]) -> None:
    """Optimizer state: zeros_like(parameter) reads the parameter."""
    for storage, op in makers.items():
        if not owners[storage] and trace.storages[storage].category == "optimizer_state":
            owners[storage] = _first_known(owners, trace.ops[op].reads)


def _by_pairs(trace: Trace, op: Op, owners: list[str]) -> None:
    """An op on lists, such as _foreach_add_: the n-th gradient, state and parameter of it belong together."""
    runs: dict[Category, list[int]] = {"parameter": [], "gradient": [], "optimizer_state": []}
    for storage in dict.fromkeys((*op.writes, *op.reads)):
        run = runs.get(trace.storages[storage].category)
        if run is not None:
            run.append(storage)
    pairs: tuple[tuple[Category, Category], ...] = (
        ("gradient", "parameter"),
        ("optimizer_state", "parameter"),
        ("gradient", "optimizer_state"),
    )
    for of, by in pairs:
        if len(runs[of]) == len(runs[by]):
            for one, other in zip(runs[of], runs[by], strict=True):
                if not owners[one] and _alike(trace, one, other):
                    owners[one] = owners[other]


def _alike(trace: Trace, one: int, other: int) -> bool:
    return trace.storages[one].size_bytes == trace.storages[other].size_bytes


def _first_known(owners: list[str], storages: Iterable[int]) -> str:
    return next((owners[storage] for storage in storages if owners[storage]), "")


def shares_of(trace: Trace, held: Sequence[int]) -> tuple[tuple[ModuleShare, ...], int]:
    """What each module holds of some storages: the `MODULES_SHOWN` largest rows, and the bytes of all others."""
    owners, containers = owners_of(trace), _containers(trace)
    lines = _lines_of(trace, held, owners)
    total: dict[tuple[str, str], int] = {}
    members: dict[tuple[str, str], set[str]] = {}
    for storage in held:
        row = block_name(owners[storage], containers), lines.get(storage, "")
        total[row] = total.get(row, 0) + trace.storages[storage].size_bytes
        members.setdefault(row, set()).add(owners[storage])
    ranked = sorted(total, key=lambda row: (-total[row], row))
    names = {row: row[0] if len(of_row) > 1 else min(of_row) for row, of_row in members.items()}
    shown = tuple(ModuleShare(names[row], len(members[row]), total[row], row[1]) for row in ranked[:MODULES_SHOWN])
    return shown, sum(total[row] for row in ranked[MODULES_SHOWN:])


def block_name(module: str, containers: Container[str] = ()) -> str:
    """A module's path with the numbers of the blocks it is in as "*"; its own number stays unless it is a container.

    >>> block_name("GPT.h.11.mlp.proj"), block_name("VGG.features.3"), block_name("GPT.h.11", {"GPT.h.11"})
    ('GPT.h.*.mlp.proj', 'VGG.features.3', 'GPT.h.*')
    """
    *above, own = module.split(".")
    if module in containers:
        above, own = [*above, own], ""
    starred = ["*" if part.isdigit() else part for part in above]
    return ".".join([*starred, own] if own else starred)


def _containers(trace: Trace) -> set[str]:
    """Modules that have modules in them."""
    found: set[str] = set()
    for module in {op.module for op in trace.ops}:
        while "." in module:
            module = module.rpartition(".")[0]  # noqa: PLW2901  from the module up to its root
            found.add(module)
    return found
