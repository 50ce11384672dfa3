"""Planners: from a trace, a machine and a budget to a plan. Each is a function of one `Problem`, in `PLANNERS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from elbowroom.planners.problem import MEANS, Means, Planner, Problem
from elbowroom.planners.swap_all import swap_all
from elbowroom.planners.swap_greedy import swap_greedy
from elbowroom.planners.tflms import tflms
from elbowroom.planners.threshold import threshold
from elbowroom.planners.vdnn import vdnn
from elbowroom.trace import Trace
from elbowroom.units import Amount, Budget, parse_budget

__all__ = ["MEANS", "MIN_SIZE_BYTES", "PLANNERS", "Planner", "Problem", "check", "plan"]

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
TIME_LIMIT_S = 60.0


def plan(
    trace: Trace,
    machine: Machine,
    budget: int | str | Budget,
    planner: str = "swap_greedy",
    min_size_bytes: int = MIN_SIZE_BYTES,
    options: Mapping[str, object] | None = None,
    allow: Sequence[Means] = MEANS,
    time_limit_s: float = TIME_LIMIT_S,
) -> Plan:
    """Decide for every storage of a trace's last step whether to keep, to swap or to recompute it.

    Args:
        trace: what the training does.
        machine: where it will run; its links below the device say where swapped storages go.
        budget: bytes the device may hold, or text such as "8GiB", "90%" (of the device) or "auto" (what its tier
            holds less what lies outside the allocator, less a margin); "host=20GiB,disk=90%" bound the tiers below.
        planner: a name in PLANNERS.
        min_size_bytes: storages below it are kept.
        options: knobs of the planner by name, such as {"swapin_ahead": 4}; each planner's function lists its own.
        allow: the means a plan may use, of those the planner knows: "swap" of saved storages, "recompute", "state"
            (swaps of optimizer states and gradients), "algorithm" (another one for a convolution).
        time_limit_s: a planner that searches stops then with the best plan it has.

    Returns:
        A plan that has passed `check`.

    Raises:
        Infeasible: no plan of this planner meets the budget; the message names the least one and what is held there.
        UsageError: the budget, the planner, an option, a means or the time limit is not one of those allowed.
    """
    if planner not in PLANNERS:
        raise UsageError(f"planner: given {planner!r}; allowed is one of {', '.join(PLANNERS)}")
    problem = _problem(trace, machine, parse_budget(budget), min_size_bytes)
    problem = replace(problem, allow=_allowed(allow), time_limit_s=_limit(time_limit_s))
    made = apply(PLANNERS[planner], planner, problem, options or {})
    check_step(problem.step, made, machine)
    return made


def _allowed(allow: Sequence[Means]) -> tuple[Means, ...]:
    if unknown := [means for means in allow if means not in MEANS]:
        raise UsageError(f"allow: given {unknown[0]!r}; allowed are {', '.join(MEANS)}; take any of them")
    return tuple(means for means in MEANS if means in allow)


def _limit(time_limit_s: float) -> float:
    if not time_limit_s > 0:
        raise UsageError(f"time_limit_s: given {time_limit_s}; allowed is more than 0; give it seconds, such as 60")
    return time_limit_s


def _problem(trace: Trace, machine: Machine, budget: Budget, min_size_bytes: int) -> Problem:
    """Resolve a budget on the machine and derive what planners need."""
    capacity: dict[TierName, int] = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    below: list[TierName] = [link.lower for link in machine.links if link.upper == "device"]
    device, tier = capacity["device"], below[0] if below else None
    tiers = _lower(capacity, budget)
    return Problem(
        step=last_step(trace),
        machine=machine,
        tier=tier,
        tier_bytes=min(tiers[tier], tiers["pinned"] if tier == "host" else tiers[tier]) if tier else 0,
        budget_bytes=budget.device.resolve(device, max(0, device - machine.outside_bytes)),
        min_size_bytes=min_size_bytes,
        tiers=tiers,
    )


def _lower(capacity: dict[TierName, int], budget: Budget) -> dict[str, int]:
    """Bytes that may lie on each lower tier, and how many may be pinned: all the host has unless said."""
    amounts: dict[TierName, Amount] = {"host": budget.host, "disk": budget.disk}
    found: dict[str, int] = {
        name: min(capacity[name], amounts[name].resolve(capacity[name], capacity[name]))
        for name in amounts
        if name in capacity
    }
    if "host" in found:
        host = found["host"]
        found["pinned"] = host if budget.pinned.is_auto else min(host, budget.pinned.resolve(capacity["host"], host))
    return found
