"""Planners: from a trace, a machine and a budget to a plan. Each is a function of one `Problem`, in `PLANNERS`."""

from __future__ import annotations

from collections.abc import Mapping

from elbowroom.checks import check, check_step
from elbowroom.errors import UsageError
from elbowroom.lifetimes import last_step
from elbowroom.machine import Machine, TierName
from elbowroom.plan import Plan
from elbowroom.planners.capuchin import capuchin
from elbowroom.planners.keep_all import keep_all
from elbowroom.planners.lms import lms
from elbowroom.planners.optimal import optimal
from elbowroom.planners.options import apply
from elbowroom.planners.problem import Planner, Problem
from elbowroom.planners.swap_all import swap_all
from elbowroom.planners.swap_greedy import swap_greedy
from elbowroom.planners.tflms import tflms
from elbowroom.planners.threshold import threshold
from elbowroom.planners.vdnn import vdnn
from elbowroom.trace import Trace
from elbowroom.units import Budget, parse_budget

__all__ = ["MIN_SIZE_BYTES", "PLANNERS", "Planner", "Problem", "check", "plan"]

PLANNERS: dict[str, Planner] = {
    "keep_all": keep_all,
    "swap_all": swap_all,
    "swap_greedy": swap_greedy,
    "optimal": optimal,
    "vdnn": vdnn,
    "tflms": tflms,
    "capuchin": capuchin,
    "threshold": threshold,
    "lms": lms,
}
MIN_SIZE_BYTES = 2**20


def plan(
    trace: Trace,
    machine: Machine,
    budget: int | str | Budget,
    planner: str = "swap_greedy",
    min_size_bytes: int = MIN_SIZE_BYTES,
    options: Mapping[str, object] | None = None,
) -> Plan:
    """Decide for every storage of a trace's last step whether to keep or to swap it.

    Args:
        trace: what the training does.
        machine: where it will run; its first link below the device says where swapped storages go.
        budget: bytes the device may hold, or text such as "8GiB", "90%" (of the device) or "auto" (what its tier
            holds less what lies outside the allocator, less a margin); "disk=20GiB" bounds the tier below.
        planner: a name in PLANNERS.
        min_size_bytes: storages below it are kept.
        options: knobs of the planner by name, such as {"swapin_ahead": 4}; each planner's function lists its own.

    Returns:
        A plan that has passed `check`.

    Raises:
        Infeasible: no plan of this planner meets the budget; the message names the least one and what is held there.
        UsageError: the budget, the planner or an option is not one of those allowed.
    """
    if planner not in PLANNERS:
        raise UsageError(f"planner: given {planner!r}; allowed is one of {', '.join(PLANNERS)}")
    problem = _problem(trace, machine, parse_budget(budget), min_size_bytes)
    made = apply(PLANNERS[planner], planner, problem, options or {})
    check_step(problem.step, made, machine)
    return made


def _problem(trace: Trace, machine: Machine, budget: Budget, min_size_bytes: int) -> Problem:
    """Resolve a budget on the machine and derive what planners need."""
    capacity = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    below: list[TierName] = [link.lower for link in machine.links if link.upper == "device"]
    device, tier = capacity["device"], below[0] if below else None
    lower = {"host": budget.host, "disk": budget.disk}
    return Problem(
        step=last_step(trace),
        machine=machine,
        tier=tier,
        tier_bytes=min(capacity[tier], lower[tier].resolve(capacity[tier], capacity[tier])) if tier else 0,
        budget_bytes=budget.device.resolve(device, max(0, device - machine.outside_bytes)),
        min_size_bytes=min_size_bytes,
    )
