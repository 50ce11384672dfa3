"""Knobs of `within`: how a run makes its plans, and where storages may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import torch

from elbowroom.engine.storages import alive_of
from elbowroom.errors import UsageError
from elbowroom.files.field_rules import shown
from elbowroom.planners import PLANNERS, Means, means_of
from elbowroom.planners.knobs import checked
from elbowroom.planners.request import PlanRequest
from elbowroom.step.least_size import MIN_SIZE_BYTES
from elbowroom.step.module_selection import selection
from elbowroom.units import parse_bytes

CHOOSING = ("planner", "options", "include", "exclude")
"""Knobs that choose what leaves: a given plan has done that already."""


class Knobs(TypedDict, total=False):
    """How the plans of a run are made.

    Attributes:
        allow: what plans may do. "swap" moves saved storages. "recompute" rebuilds them, if swaps make steps wait or
            are too few. "state" and "gradient" move optimizer states and gradients, if nothing else is enough.
            "parameter" moves parameters too: see Note: [Parameters away] in engine/parameters.py for what stays.
            "algorithm" runs convolutions with other algorithms, which round differently.
        planner: name of the planner, as for `elbowroom.plan`.
        options: options of the planner, such as {"size_bytes": "8MiB"} for "threshold".
        include: plans move only what these modules made: a glob on paths of modules such as "layer1.*", or several.
        exclude: plans keep what these modules made. An observed step still moves it.
        gds: move storages between a CUDA device and the disk past the host, by GPUDirect Storage (torch.cuda.gds). If
            the machine does not offer it, they go by way of the host, with a warning.
        managed: bytes of managed memory on the host, such as "4GiB". What does not fit into the budget of a CUDA device
            may lie there. The device works there slowly. Beyond these bytes torch raises its OutOfMemoryError.
    """

    allow: Sequence[Means] | None
    planner: str | None
    options: Mapping[str, object] | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    gds: bool
    managed: int | str


def asked(min_size: int | str | None, knobs: Knobs, *, has_plan: bool) -> PlanRequest:
    """Check the knobs of `elbowroom.within`, and return them as a request.

    Raises:
        UsageError: one of them is not known or not allowed, or has no meaning with a given plan.
    """
    if unknown := [knob for knob in knobs if knob not in Knobs.__annotations__]:
        raise UsageError(f"within: given {unknown[0]}; allowed are also {', '.join(Knobs.__annotations__)}")
    if has_plan and (both := [knob for knob, value in knobs.items() if value and knob in CHOOSING]):
        raise UsageError(
            f"within: given plan and {both[0]}; allowed is one of them, as a plan says all that is to be done; leave "
            f"{both[0]} out"
        )
    name, size_bytes = knobs.get("planner"), None if min_size is None else parse_bytes(min_size)
    if size_bytes == 0:
        raise UsageError(f"within: given min_size={min_size!r}; allowed is a size of 1 byte or more, such as 4MiB")
    if name is not None and name not in PLANNERS:
        raise UsageError(f"planner: given {shown(name)}; allowed is one of {', '.join(PLANNERS)}")
    chosen = selection(knobs.get("include", ()), knobs.get("exclude", ()))
    return PlanRequest(
        min_size_bytes=size_bytes or MIN_SIZE_BYTES,
        follows=size_bytes is None,
        allow=means_of(knobs.get("allow")),
        planner=name,
        options=_options(name, knobs.get("options") or {}),
        include=chosen.include,
        exclude=chosen.exclude,
        gds=bool(knobs.get("gds", False)),
        managed_bytes=parse_bytes(knobs.get("managed") or 0),
    )


def _options(planner: str | None, given: Mapping[str, object]) -> dict[str, object]:
    if planner is None and given:
        raise UsageError(f"options: given {shown(next(iter(given)))} without planner; name the planner that has it")
    return checked(PLANNERS[planner], planner, given) if planner else {}


def live_modules() -> set[str]:
    """Return the paths of all modules of this process, as traces name them."""
    modules = alive_of(torch.nn.Module)
    inside = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in inside]
    return {
        f"{type(root).__name__}.{name}" if name else type(root).__name__
        for root in roots
        for name, _ in root.named_modules(remove_duplicate=False)
    }
