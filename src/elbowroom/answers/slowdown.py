"""Slowdown: does a step fit a machine with a plan that keeps within a slowdown, and what does it need?

Computes: the least budget for that slowdown, as device memory, memory outside the allocator included. It is exact on
the question whether that is within the capacity. Elsewhere it is rough (`ROUGHLY` in planners/budget/least.py).
Slowdown compares with the same step with everything kept, on the same machine with memory for it. Both do the same
work, so the slowdown holds for every sample, pixel or token. Reference: vDNN (Rhu et al., MICRO 2016), whose loss of
performance is against such an "oracular" GPU.
Ignores: what the simulator ignores; how a batch size changes the speed of kernels, as both sides have the same value.
Cost: a plan for the capacity, and about five more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.planners import DEFAULT_PLANNER, Means, asking, requested
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.least import needed_bytes
from elbowroom.trace import Trace
from elbowroom.units import Budget
from elbowroom.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownNeed:
    """What a step needs within a slowdown.

    Attributes:
        needed_bytes: device memory, memory outside the allocator included; rough unless it is near the capacity.
        capacity_bytes: memory of the device.
        kept_step_ns: simulated time of the step with everything kept.
        step_ns: simulated time with the plan for the whole capacity; None if there is no such plan.
    """

    needed_bytes: int
    capacity_bytes: int
    kept_step_ns: int
    step_ns: int | None

    @property
    def fits(self) -> bool:
        """Whether a plan within the capacity is fast enough."""
        return self.needed_bytes <= self.capacity_bytes

    @property
    def slowdown(self) -> float | None:
        """Slowdown of the plan for the whole capacity; None if there is no such plan."""
        return self.step_ns / self.kept_step_ns if self.step_ns is not None and self.kept_step_ns else None


def within_slowdown(
    trace: Trace,
    machine: Machine,
    slowdown: float,
    planner: str = DEFAULT_PLANNER,
    watch: Watch | None = None,
    *,
    allow: Sequence[Means] | None = None,
) -> SlowdownNeed:
    """Compute what a step needs to keep within a slowdown.

    Args:
        trace: what the training does.
        machine: where it runs; the budget is its device less the memory outside the allocator.
        slowdown: factor on the step time with everything kept.
        planner: name of the planner.
        watch: reports progress, and limits the time.
        allow: means of the plans, as for `elbowroom.plan`.

    Raises:
        TimeOver: the time of `watch` is over.
    """
    ask = asking(trace, machine, below_device(machine, Budget()), requested(planner, allow=allow), watch=watch)
    kept, capacity_bytes = ask.kept(), machine.tiers[0].capacity_bytes
    budget_bytes = max(0, capacity_bytes - machine.outside_bytes)
    weigh = cache(ask.weigh)
    try:
        step_ns = weigh(budget_bytes).step_ns
    except Infeasible:
        step_ns = None
    needed = needed_bytes(weigh, kept, slowdown, budget_bytes)
    return SlowdownNeed(
        needed_bytes=needed + machine.outside_bytes,
        capacity_bytes=capacity_bytes,
        kept_step_ns=kept.step_ns,
        step_ns=step_ns,
    )
