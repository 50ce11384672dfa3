"""Planners: make a plan from a trace, a machine and a budget. Each is a function of one `Problem`, in `PLANNERS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from elbowroom.allocator.settings import as_set_by_script
from elbowroom.errors import Infeasible, UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners.ask import Asking
from elbowroom.planners.baselines.capuchin import capuchin
from elbowroom.planners.baselines.keep_all import keep_all
from elbowroom.planners.baselines.lms import lms
from elbowroom.planners.baselines.on_demand import on_demand
from elbowroom.planners.baselines.recompute_blocks import recompute_blocks
from elbowroom.planners.baselines.swap_all import swap_all
from elbowroom.planners.baselines.swap_greedy import swap_greedy
from elbowroom.planners.baselines.swap_states import swap_states
from elbowroom.planners.baselines.tflms import tflms
from elbowroom.planners.baselines.threshold import threshold
from elbowroom.planners.baselines.vdnn import vdnn
from elbowroom.planners.budget.budgets import first_lower, held_to, resolved
from elbowroom.planners.budget.least import checked_slowdown, least_plan
from elbowroom.planners.budget.remedies import Refused, with_remedies
from elbowroom.planners.installed import Planners
from elbowroom.planners.optimal.optimal import optimal
from elbowroom.planners.problem import (
    DEFAULT_MEANS,
    MEANS,
    OBJECTIVES,
    OF_STATES,
    Judge,
    Means,
    Objective,
    Planner,
    Problem,
    any_recompute,
)
from elbowroom.planners.request import TIME_LIMIT_S, PlanRequest, ResolvedBudget
from elbowroom.simulate.energy import EnergyPrices
from elbowroom.step.check import check
from elbowroom.step.last_step import last_step
from elbowroom.step.least_size import MIN_SIZE_BYTES
from elbowroom.step.module_selection import selected, selection
from elbowroom.trace import Trace
from elbowroom.units import Budget, parse_budget, parse_bytes
from elbowroom.watch import Watch

__all__ = [
    "DEFAULT_MEANS",
    "DEFAULT_PLANNER",
    "MEANS",
    "MIN_SIZE_BYTES",
    "OBJECTIVES",
    "PLANNERS",
    "Asking",
    "Judge",
    "Means",
    "Objective",
    "Planner",
    "Problem",
    "any_recompute",
    "asking",
    "check",
    "means_of",
    "parts_for",
    "plan",
    "requested",
]

PLANNERS = Planners(
    {
        "keep_all": keep_all,
        "swap_all": swap_all,
        "swap_greedy": swap_greedy,
        "swap_states": swap_states,
        "optimal": optimal,
        "recompute_blocks": recompute_blocks,
        "vdnn": vdnn,
        "tflms": tflms,
        "capuchin": capuchin,
        "threshold": threshold,
        "lms": lms,
        "on_demand": on_demand,
    }
)
DEFAULT_PLANNER = "optimal"
REMEDY_LIMIT_S = 2.0
"""Time limit of each program that is solved to find out what would help."""


def plan(
    trace: Trace,
    machine: Machine,
    budget: int | str | Budget,
    planner: str = DEFAULT_PLANNER,
    min_size: int | str | None = None,
    options: Mapping[str, object] | None = None,
    allow: Sequence[Means] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    slowdown: float | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    watch: Watch | None = None,
    *,
    objective: Objective = "time",
) -> Plan:
    """Decide for every storage of a trace's last step whether to keep, swap or recompute it. The plan is `check`ed.

    Args:
        trace: what the training does.
        machine: the machine that it will run on, and the tiers for swapped storages.
        budget: bytes that the device may hold; with a caching allocator, bytes that it may reserve. Also text, such as
            "8GiB", "90%", "auto" (without what lies outside the allocator) or "least". "host=20GiB,disk=90%" limits
            the lower tiers.
        planner: a name in PLANNERS.
        min_size: smaller storages are kept; bytes or text. None: 1 MiB, or a 4096th part of the budget if less.
        options: options of the planner, by name.
        allow: means that a plan may use, of swap, recompute, state, gradient, parameter and algorithm, as in `within`.
            None: all but the last two, as in a run. Algorithms change bits. Parameters need a trace with their uses.
        time_limit_s: a planner that searches stops after this time with the best plan it has.
        slowdown: with the budget "least": how many times as long as with everything kept the step may take.
        include: only what these modules made may move: a glob on paths of modules such as "layer1.*", or several.
        exclude: what these modules made stays.
        watch: shows progress, and may end a search early with the best plan so far.
        objective: "time" looks for the fastest step, "energy" for the one of the least simulated joules. The latter is
            for planner "optimal" and GPUs whose board power is known.

    Raises:
        Infeasible: no plan of this planner meets the budget; the message names the least budget that one meets.
        UsageError: an argument is not allowed.
    """
    asked = requested(
        planner, min_size, options, allow, time_limit_s, include=include, exclude=exclude, objective=objective
    )
    amounts = parse_budget(budget)
    within = resolved(machine, amounts)
    try:
        return _planned(asking(trace, machine, within, asked, watch=watch), within, amounts, slowdown, watch)
    except Infeasible as found:
        raise _remedied(found, trace, machine, within, asked) from None


def _remedied(
    found: Infeasible, trace: Trace, machine: Machine, within: ResolvedBudget, asked: PlanRequest
) -> Infeasible:
    """Return the refusal with what would help added."""

    def planned(other: Trace, knobs: PlanRequest, device_bytes: int) -> Plan:
        limited = replace(knobs, time_limit_s=min(knobs.time_limit_s, REMEDY_LIMIT_S))
        return asking(other, machine, within, limited).plan(device_bytes)

    return with_remedies(found, Refused(trace=trace, asked=asked, plan=planned))


def _planned(ask: Asking, within: ResolvedBudget, amounts: Budget, slowdown: float | None, watch: Watch | None) -> Plan:
    """Return the plan for a budget, or for the least one."""
    if amounts.device.is_least:
        return least_plan(ask.weigh, ask.kept(), checked_slowdown(slowdown), watch)
    if slowdown is not None:
        raise UsageError(f"slowdown: given {slowdown} with budget {amounts.device}; allowed is it with 'least' only")
    return ask.plan(within.device_bytes)


def requested(
    planner: str = DEFAULT_PLANNER,
    min_size: int | str | None = None,
    options: Mapping[str, object] | None = None,
    allow: Sequence[Means] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    objective: Objective = "time",
) -> PlanRequest:
    """Check arguments of `plan`, and return them as a request.

    Raises:
        UsageError: one of them is not allowed.
    """
    if planner not in PLANNERS:
        raise UsageError(f"planner: given {planner!r}; allowed is one of {', '.join(PLANNERS)}")
    if objective not in OBJECTIVES or (objective != "time" and planner != DEFAULT_PLANNER):
        raise UsageError(
            f"objective: given {objective!r} with planner {planner!r}; allowed is one of {', '.join(OBJECTIVES)}, and "
            f"another than time with planner {DEFAULT_PLANNER!r} alone; the others look for their own"
        )
    modules = selection(include, exclude)
    return PlanRequest(
        planner=planner,
        min_size_bytes=MIN_SIZE_BYTES if min_size is None else parse_bytes(min_size),
        follows=min_size is None,
        options=dict(options or {}),
        allow=means_of(allow),
        time_limit_s=_limit(time_limit_s),
        include=modules.include,
        exclude=modules.exclude,
        modules=modules,
        objective=objective,
    )


def asking(
    trace: Trace,
    machine: Machine,
    budget: ResolvedBudget,
    request: PlanRequest,
    *,
    judge: Judge = any_recompute,
    watch: Watch | None = None,
    shared: dict[object, Any] | None = None,
) -> Asking:
    """Return an `Asking` that plans a trace for one device budget after the other.

    Args:
        trace: what the training does.
        machine: the machine that it runs on.
        budget: the budgets of the lower tiers; its bytes for the device are ignored.
        request: the planner and its knobs.
        judge: no plan of `optimal` or `capuchin` has a recompute that it refuses.
        watch: shows progress.
        shared: what was found for other budgets of the same trace and GPU; more is added to it. Plans begin with
            those for other budgets then, which takes less time for each. None for plans that stand alone.
    """
    link, name = first_lower(machine), request.planner or DEFAULT_PLANNER
    tier, lower = link.lower if link else None, budget.lower
    problem = Problem(
        step=selected(last_step(trace), request.modules),
        machine=held_to(as_set_by_script(machine, trace), budget),
        tier=tier,
        tier_bytes=lower["pinned" if tier == "host" else tier] if tier else 0,
        budget_bytes=0,
        min_size_bytes=request.min_size_bytes,
        tiers=lower,
        allow=request.allow,
        time_limit_s=request.time_limit_s,
        judge=judge,
        prices=EnergyPrices(trace, machine) if request.objective == "energy" else None,
        shared=shared,
        follows=request.follows,
    )
    return Asking(problem, PLANNERS[name], name, request.options, watch)


def means_of(allow: Sequence[Means] | None) -> tuple[Means, ...]:
    """Return the means that plans and runs may use, in one order; `DEFAULT_MEANS` for None.

    Raises:
        UsageError: there is no such means.
    """
    if allow is None:
        return DEFAULT_MEANS
    if unknown := [means for means in allow if means not in MEANS]:
        raise UsageError(f"allow: given {unknown[0]!r}; allowed are {', '.join(MEANS)}; take any of them")
    return tuple(means for means in MEANS if means in allow)


def parts_for(means: Sequence[Means], min_size: int | str) -> dict[str, Any]:
    """Return the options of a capture that shows what plans of some means move.

    Args:
        means: the means.
        min_size: smaller states and parameters stay; bytes or text.
    """
    moves = not set(OF_STATES).isdisjoint(means)
    return {"in_parts": moves, "min_size": min_size, "parameters": "parameter" in means}


def _limit(time_limit_s: float) -> float:
    if not time_limit_s > 0:
        raise UsageError(f"time_limit_s: given {time_limit_s}; allowed is more than 0; give it seconds, such as 60")
    return time_limit_s
