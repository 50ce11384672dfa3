"""Plans for a budget of reserved bytes, where the device has a caching allocator.

Planners count allocated bytes; what the allocator reserves for them is more, by the free memory between blocks, and
is known once a plan is simulated. So a plan is made for the whole budget, and if it reserves more, for less by what it
reserves too much, until one fits.
"""

from __future__ import annotations

from dataclasses import replace

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import plan
from elbowroom.simulate import simulate
from elbowroom.trace import Trace
from elbowroom.units import Amount, Budget, format_bytes

PLANNER = "swap_greedy"
ROUNDS = 10
"""Plans that are tried for one budget."""


def peak_bytes(trace: Trace, machine: Machine, made: Plan | None = None) -> int:
    """What a budget of the device counts: reserved bytes where its allocator caches, allocated ones elsewhere."""
    line = simulate(trace, machine, made)
    return line.peak_allocated_bytes if machine.allocator == "exact" else line.peak_reserved_bytes


def plan_within(trace: Trace, machine: Machine, budget: Budget, min_size_bytes: int) -> Plan:
    """A plan whose peak, as `peak_bytes` has it, is within the budget of the device.

    Raises:
        Infeasible: no plan that was tried is.
    """
    budget_bytes = budget.device.size_bytes or 0
    # A budget above what the machine has is no limit here, and `plan` would refuse it.
    allowed, refused, least, most = budget_bytes, 0, 0, machine.tiers[0].capacity_bytes
    for _ in range(ROUNDS):
        try:
            made = plan(
                trace, machine, _for_device(budget, min(allowed, most)), PLANNER, min_size_bytes, allow=("swap",)
            )
        except Infeasible as problem:
            if allowed == budget_bytes:
                raise
            refused = max(refused, problem.least_feasible_bytes)
            allowed = refused
            continue
        if machine.allocator == "exact":
            return made
        reserved = peak_bytes(trace, machine, made)
        if reserved <= budget_bytes:
            return replace(made, budget_bytes=budget_bytes)
        least = min(least or reserved, reserved)
        if allowed <= refused:
            break
        allowed = max(refused, allowed - max(reserved - budget_bytes, allowed // 64))
    raise Infeasible(
        f"budget: given {format_bytes(budget_bytes)} ({budget_bytes} bytes) of reserved memory; the plans that were "
        f"tried reserve {format_bytes(least)} ({least} bytes) at least, free memory between blocks included; raise the "
        "budget to that, or set PYTORCH_ALLOC_CONF=expandable_segments:True before torch starts",
        budget_bytes=budget_bytes,
        least_feasible_bytes=least,
    )


def _for_device(budget: Budget, device_bytes: int) -> Budget:
    return replace(budget, device=Amount(size_bytes=device_bytes))
