"""Owners: which module each storage of a trace belongs to.

A storage belongs to the module of the op that made it, with these exceptions. A parameter or buffer belongs to the
first module whose forward op reads it. An optimizer state that no module made belongs to the owner of the parameter it
was made from. A gradient that no module's backward made belongs to the owner of its parameter. Workspaces that stay,
and storages that no rule covers, have the owner "". A storage without an owner is named by the
user's line that made it, if the trace has it. Else it is named by the line for which autograd first saved it. Cost:
linear in the ops and events, once for a trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from elbowroom.trace import Category, Op, Trace


@dataclass(frozen=True, slots=True)
class Owners:
    """Owners of the storages of a trace.

    Attributes:
        modules: path of the owning module per storage, "" if it is not known.
        lines: by storage without an owner, the user's line that made it, if the trace has it. Else it is the line for
            which autograd first saved it.
    """

    modules: tuple[str, ...]
    lines: dict[int, str]


def owners_of(trace: Trace) -> Owners:
    """Return the owners, found once and kept with the trace."""
    kept = trace.derived.get("owners")
    if kept is None:
        kept = trace.derived["owners"] = _found(trace)
    return cast("Owners", kept)


def _found(trace: Trace) -> Owners:
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
    lines = _saving_lines(trace) | {each: line for each, op in makers.items() if (line := trace.source_line(op))}
    ownerless = {storage for storage, owner in enumerate(owners) if not owner and storage not in stays}
    return Owners(tuple(owners), {storage: line for storage, line in lines.items() if storage in ownerless})


def _makers(trace: Trace) -> dict[int, int]:
    """Return by storage the op that made it."""
    return {event.storage: event.op for event in trace.events if event.size_bytes > 0 and event.op >= 0}


def _saving_lines(trace: Trace) -> dict[int, str]:
    """Return by saved storage the line of the first op that it was saved for.

    An op's result is saved after it, its arguments are saved before it.
    """
    found: dict[int, str] = {}
    for save in trace.saves if trace.op_source_lines else ():
        for op in (save.saved_at - 1, save.saved_at):
            if 0 <= op < len(trace.ops) and (line := trace.source_line(op)):
                given = trace.ops[op].writes if op < save.saved_at else trace.ops[op].reads
                if save.storage in given:
                    found.setdefault(save.storage, line)
    return found


def _workspaces_that_stay(trace: Trace, makers: dict[int, int]) -> set[int]:
    """Return the workspaces that outlive the op that made them, such as cuBLAS's: all modules use them."""
    within = {event.storage for event in trace.events if event.size_bytes < 0 and makers.get(event.storage) == event.op}
    return {s for s in makers if trace.storages[s].category == "workspace" and s not in within}


def _by_first_reader(trace: Trace, owners: list[str]) -> None:
    """Give parameters and buffers to the first module that reads them in forward, even if another module made them."""
    found: set[int] = set()
    for op in trace.ops:
        if op.phase != "forward" or not op.module:
            continue
        for storage in op.reads:
            if storage not in found and trace.storages[storage].category in ("parameter", "buffer"):
                found.add(storage)
                owners[storage] = op.module


def _by_parameter_made_from(trace: Trace, makers: dict[int, int], owners: list[str]) -> None:
    """Give an optimizer state to its parameter's owner: zeros_like(parameter) reads the parameter."""
    for storage, op in makers.items():
        if not owners[storage] and trace.storages[storage].category == "optimizer_state":
            owners[storage] = _first_known(owners, trace.ops[op].reads)


def _by_pairs(trace: Trace, op: Op, owners: list[str]) -> None:
    """Pair the n-th gradient, state and parameter of an op on lists, such as _foreach_add_: one owner has them all."""
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
