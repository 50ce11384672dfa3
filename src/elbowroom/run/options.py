"""What a run was asked for beside its budget: the knobs of `within`."""

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
"""Knobs that say what is to be done, as a plan does."""


class Knobs(TypedDict, total=False):
    """How the plans of a run are made.

    Attributes:
        allow: what plans may do: "swap" saved storages; "recompute" them, where swaps make steps wait or are too few;
            swap optimizer states too, where nothing else is enough ("state"), and gradients beside them ("gradient");
            run convolutions with other algorithms, which round differently ("algorithm").
        planner: who makes the plans, as for `elbowroom.plan`.
        options: its knobs, such as {"size_bytes": "8MiB"} of the planner "threshold".
        include: plans move only what these modules made: a glob on paths of modules such as "layer1.*", or several.
        exclude: plans keep what these modules made. An observed step moves all the same.
        gds: storages go between a CUDA device and the disk past the host, by GPUDirect Storage (torch.cuda.gds); where
            the machine does not offer it, by way of the host, with a warning.
        managed: what does not fit into the budget of a CUDA device may lie in so many bytes of managed memory on the
            host, such as "4GiB"; what the device does there is slow. Beyond them torch raises its OutOfMemoryError.
    """

    allow: Sequence[Means] | None
    planner: str | None
    options: Mapping[str, object] | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    gds: bool
    managed: int | str


def asked(min_size: int | str | None, knobs: Knobs, *, has_plan: bool) -> PlanRequest:
    """The knobs as `elbowroom.within` takes them.

    Raises:
        UsageError: one of them is not known or not allowed, or has no meaning beside a given plan.
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
    """Paths of all modules of this process, as a trace has them."""
    modules = alive_of(torch.nn.Module)
    inside = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in inside]
    return {
        f"{type(root).__name__}.{name}" if name else type(root).__name__
        for root in roots
        for name, _ in root.named_modules(remove_duplicate=False)
    }
