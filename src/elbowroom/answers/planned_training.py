"""Planned training: how a training that does not fit a machine would train there, under a plan that is found quickly.

Computes: the plan that a run finds first for the device's memory, with swaps of saved storages, optimizer states and
gradients; and if none meets it, with parameters too. Then a simulation of that plan.
Reference: `course_within` in planners/budget/run_budget.py, which is what `elbowroom run` begins with.
Optimal: never. Recomputes and the search of `optimal` are left out, so `elbowroom plan` may find a faster step.
Ignores: means that the trace does not show: states and gradients need a trace with optimizers' steps in parts.
Cost: some seconds, up to a minute for a step of some ten thousand ops; nothing is begun after `PATIENCE_S`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.remedies import restricted, with_accumulations
from elbowroom.planners.budget.run_budget import Course, CourseRequest, course_within, least_allocated
from elbowroom.planners.problem import DEFAULT_MEANS, Means
from elbowroom.planners.request import PlanRequest
from elbowroom.simulate.simulate import simulate
from elbowroom.step.exchange_times import GROUPS
from elbowroom.step.handed_gradients import without_handed
from elbowroom.step.least_size import least_size
from elbowroom.step.parameter_uses import with_uses
from elbowroom.trace import Trace
from elbowroom.units import parse_budget

WITHOUT_PARAMETERS: tuple[Means, ...] = ("swap", "state", "gradient")
WITH_PARAMETERS: tuple[Means, ...] = (*WITHOUT_PARAMETERS, "parameter")
PATIENCE_S = 60.0
"""No further plan is begun after this time."""
MOST_EVENTS = 1_000_000
"""A longer trace is not planned: that would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """What a quick plan does for a training that does not fit a machine. Its times are simulated.

    Attributes:
        fits: whether a plan was found with which it trains within the device's memory.
        means: what the plan may move: "swap", "state", "gradient", and "parameter" if nothing less was enough.
        step_ns: simulated time of a step under the plan; 0 without a plan.
        kept_step_ns: simulated time of a step with everything kept, on a device with room for that.
        host_bytes: most bytes on the host.
        disk_bytes: most bytes on the disk.
        needed_bytes: device memory that the plan needs; without a plan, the least that was found to be enough.
    """

    fits: bool
    means: tuple[Means, ...]
    step_ns: int
    kept_step_ns: int
    host_bytes: int
    disk_bytes: int
    needed_bytes: int

    @property
    def allow(self) -> tuple[Means, ...]:
        """What a run has to be allowed for it; empty if it is allowed that by default."""
        return () if set(self.means) <= set(DEFAULT_MEANS) else (*DEFAULT_MEANS, "parameter")

    @property
    def slowdown(self) -> float:
        """How many times as long a step takes as with everything kept."""
        return self.step_ns / self.kept_step_ns if self.kept_step_ns else 1.0


def planned_training(trace: Trace, machine: Machine, ways: Sequence[tuple[Means, ...]] = ()) -> PlannedTraining | None:
    """Plan a training that does not fit a machine quickly.

    Args:
        trace: what it does, best with optimizers' steps in parts (`in_parts` of a capture).
        machine: the GPU. What it has, less the memory outside the allocator, is the budget.
        ways: the sets of means to try, one after the other; empty for those that the trace may have.

    Returns:
        What the plan does, or the least that any plan tried would need. None if that would take too long.
    """
    outside_bytes = machine.outside_bytes
    budget_bytes = machine.tiers[0].capacity_bytes - outside_bytes
    if budget_bytes <= 0 or len(trace.events) > MOST_EVENTS:
        return None
    until_s, found = time.monotonic() + PATIENCE_S, list[PlannedTraining]()
    ways = ways or _means_of(trace)
    for means in ways:
        request = _request(trace, machine, budget_bytes, means)
        if means != ways[-1] and least_allocated(request) > budget_bytes:
            continue  # what cannot be allocated need not be searched for: the next way moves more
        try:
            course = course_within(request)
        except Infeasible as problem:
            found.append(_refused(means, problem.least_feasible_bytes + outside_bytes))
        else:
            return _figures(request, course, outside_bytes)
        if time.monotonic() > until_s:
            break
    return min(found, key=lambda each: each.needed_bytes)


def _means_of(trace: Trace) -> Sequence[tuple[Means, ...]]:
    """Return the means to try, one set after the other: parameters stay where code of the compiler uses them unseen.

    With torch.distributed a run moves neither gradients nor parameters.
    """
    if any(op.name.startswith(GROUPS) for op in trace.ops):
        return (("swap", "state"),)
    compiled = any(remark.kind == "compiled" for remark in trace.remarks)
    return (WITHOUT_PARAMETERS,) if compiled else (WITHOUT_PARAMETERS, WITH_PARAMETERS)


def _request(trace: Trace, machine: Machine, budget_bytes: int, means: tuple[Means, ...]) -> CourseRequest:
    least_bytes = least_size(budget_bytes)
    shown = with_accumulations(trace)
    if "parameter" not in means:
        shown = without_handed(shown)
    elif not any(part.kind == "use" for part in trace.parts):
        shown = with_uses(shown, least_bytes)
    return CourseRequest(
        trace=restricted(shown, means),
        machine=machine,
        budget=below_device(machine, parse_budget("auto")).on_device(budget_bytes),
        asked=PlanRequest(allow=means, min_size_bytes=least_bytes),
        from_first=machine.allocator != "exact",
    )


def _refused(means: tuple[Means, ...], least_bytes: int) -> PlannedTraining:
    return PlannedTraining(
        fits=False, means=means, step_ns=0, kept_step_ns=0, host_bytes=0, disk_bytes=0, needed_bytes=least_bytes
    )


def _figures(request: CourseRequest, course: Course, outside_bytes: int) -> PlannedTraining:
    limit_bytes = course.peak_bytes if course.at_limit else request.budget.device_bytes
    line = simulate(request.trace, request.machine, replace(course.plan, budget_bytes=limit_bytes))
    kept = simulate(request.trace, replace(request.machine, allocator="exact"))
    return PlannedTraining(
        fits=True,
        means=request.asked.allow,
        step_ns=line.step_ns,
        kept_step_ns=kept.step_ns,
        host_bytes=line.peak_of("host", "allocated"),
        disk_bytes=line.peak_of("disk", "allocated"),
        needed_bytes=course.peak_bytes + outside_bytes,
    )
