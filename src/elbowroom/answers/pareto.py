"""Pareto: the curve of budget against step time, for one or several planners.

Computes: plans at some budgets between the least feasible one and the peak of keeping everything, each simulated. The
budgets are not given beforehand. The next one halves the least known stretch of the curve: that with the largest
product of bytes and time between its ends. A plan also serves any larger budget. So if a planner makes a slower plan
for more bytes, the point has the faster one. Each plan begins with those for other budgets (optimal/neighbours.py).
A point far above the next one had few of them, and is asked for once more.
Optimal: as the planner is. Ignores: budgets between the points.
Cost: a plan and a simulation a point; a few points twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from elbowroom.errors import UsageError
from elbowroom.files import field_rules as rules
from elbowroom.files.record_files import Filed
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import DEFAULT_PLANNER, asking, requested
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.least import Ask, Weighed, lowest
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.units import Budget, parse_budget
from elbowroom.watch import ENDS, Watch

POINTS = 9
EFFORT_S = 1.0
"""Default time limit of each search for a plan, in seconds: about a tenth of the changes that are tried otherwise."""

STEEP = 1.3
"""A point slower than the next one by this factor is asked for once more, as it had fewer plans to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Step time of one planner's plan for one budget.

    Attributes:
        planner: its name.
        budget_bytes: the budget that it was given.
        step_ns: simulated time of the step.
        lower_bound_ns: no plan takes less, in the order of ops of the trace; None if the planner proves nothing.
        stall_ns: part of the step in which compute waits for copies.
        peak_allocated_bytes: simulated peak of allocated bytes on the device.
        peak_reserved_bytes: simulated peak of reserved bytes on the device.
        swapped_out_bytes: bytes that leave the device.
        swapped_back_bytes: bytes that come back.
    """

    planner: str
    budget_bytes: int
    step_ns: int
    lower_bound_ns: int | None
    stall_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    swapped_out_bytes: int
    swapped_back_bytes: int

    def __post_init__(self) -> None:
        rules.text("Point.planner", self.planner)
        for name in ("budget_bytes", "step_ns", "stall_ns", "peak_allocated_bytes", "peak_reserved_bytes"):
            rules.integer(f"Point.{name}", getattr(self, name))
        rules.integer("Point.swapped_out_bytes", self.swapped_out_bytes)
        rules.integer("Point.swapped_back_bytes", self.swapped_back_bytes)
        if self.lower_bound_ns is not None:
            rules.integer("Point.lower_bound_ns", self.lower_bound_ns, most=self.step_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto(Filed):
    """Budgets against step times, for the last step of one trace on one machine.

    Attributes:
        trace_id: `Trace.id` of the trace.
        machine: its name.
        kept_peak_bytes: peak of the device with everything kept (reserved bytes if there is a caching allocator).
        kept_step_ns: simulated time of the step with everything kept.
        points: points by planner, and by rising budget for each.
    """

    trace_id: str
    machine: str
    kept_peak_bytes: int
    kept_step_ns: int
    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        rules.text("Pareto.trace_id", self.trace_id)
        rules.text("Pareto.machine", self.machine)
        rules.integer("Pareto.kept_peak_bytes", self.kept_peak_bytes)
        rules.integer("Pareto.kept_step_ns", self.kept_step_ns)
        rules.records("Pareto.points", self.points, Point)
        for planner in self.planners:
            rules.ascending("Pareto.points.budget_bytes", tuple(p.budget_bytes for p in self.of(planner)))

    @property
    def planners(self) -> tuple[str, ...]:
        """The planners, in the order of their points."""
        return tuple(dict.fromkeys(point.planner for point in self.points))

    def of(self, planner: str) -> tuple[Point, ...]:
        """The points of one planner."""
        return tuple(point for point in self.points if point.planner == planner)

    def slowdown(self, point: Point) -> float:
        """Return the step time of a point as a multiple of that with everything kept."""
        return point.step_ns / self.kept_step_ns if self.kept_step_ns else 1.0


def pareto(
    trace: Trace,
    machine: Machine,
    planners: Sequence[str] = (DEFAULT_PLANNER,),
    *,
    count: int = POINTS,
    budget: str | Budget = "auto",
    options: Mapping[str, object] | None = None,
    **asked: Any,
) -> Pareto:
    """Compute the curve of budget against step time.

    Args:
        trace: what the training does.
        machine: where it will run.
        planners: names of planners, each of which has a curve.
        count: most points of a planner, at least 2.
        budget: its amounts for the tiers below the device hold for all points; that of the device is ignored.
        options: knobs of the planner, if there is one planner.
        asked: further arguments of `elbowroom.plan`, such as allow, time_limit_s and watch. A limit of 10 s or more
            makes as many changes to each point as `elbowroom.plan` to one plan.

    Raises:
        Infeasible: a planner meets no budget.
        UsageError: `count` is below 2, or something that `elbowroom.plan` does not allow.
    """
    _check(planners, count, options)
    kept, found = simulate(trace, machine), list[Point]()
    asked.setdefault("time_limit_s", EFFORT_S)
    lower, watch = below_device(machine, parse_budget(budget)), asked.pop("watch", None)
    for planner in planners:
        ask = asking(trace, machine, lower, requested(planner, options=options, **asked), watch=watch, shared={})
        found += _points(_sampled(ask.weigh, kept.peak_reserved_bytes, count, watch))
    return Pareto(
        trace_id=trace.id,
        machine=machine.name,
        kept_peak_bytes=kept.peak_reserved_bytes,
        kept_step_ns=kept.step_ns,
        points=tuple(found),
    )


def _check(planners: Sequence[str], count: int, options: Mapping[str, object] | None) -> None:
    if count < 2:
        raise UsageError(f"pareto: given count={count}; allowed are 2 points or more, for its ends; raise it")
    if options and len(planners) > 1:
        raise UsageError(f"pareto: given options for {len(planners)} planners; allowed is it for one; leave them out")


def _sampled(ask: Ask, kept_peak_bytes: int, count: int, watch: Watch | None) -> list[Weighed]:
    """Return plans by rising budget: the least, that of keeping everything, and those that halve stretches between.

    Args:
        ask: makes and weighs a plan that begins with those for other budgets.
        kept_peak_bytes: what keeping everything reserves.
        count: most points.
        watch: shows progress; None: Ctrl-C goes on to the caller.
    """
    points = [lowest(ask)]
    try:
        if points[0].plan.budget_bytes < kept_peak_bytes:
            points.append(ask(kept_peak_bytes))
        while 1 < len(points) < count and (halved := _halved(ask, points)):
            points = halved
        for k in reversed(range(len(points) - 1)):
            points[k] = _again(ask, *points[k : k + 2])
    except ENDS as problem:
        if watch is None:
            raise
        watch.ends_early(problem, f"the curve has {len(points)} of {count} points")
    return points


def _again(ask: Ask, point: Weighed, following: Weighed) -> Weighed:
    """Return a point; if it is far above the one that follows, the faster of it and what is found once more."""
    if point.step_ns <= STEEP * following.step_ns:
        return point
    return min(point, ask(point.plan.budget_bytes), key=lambda each: each.step_ns)


def _halved(ask: Ask, points: Sequence[Weighed]) -> list[Weighed]:
    """Return the points with one more in the least known stretch; none if no budget lies between its ends."""
    stretches = [
        (high.plan.budget_bytes - low.plan.budget_bytes) * max(1, low.step_ns - high.step_ns)
        for low, high in pairwise(points)
    ]
    at = stretches.index(max(stretches))
    low_bytes, high_bytes = points[at].plan.budget_bytes, points[at + 1].plan.budget_bytes
    if high_bytes - low_bytes < 2:
        return []
    return [*points[: at + 1], ask((low_bytes + high_bytes) // 2), *points[at + 1 :]]


def _points(sampled: Sequence[Weighed]) -> Iterator[Point]:
    """Yield a point per budget, each with the fastest of its own plan and those of smaller budgets."""
    best = sampled[0]
    for each in sampled:
        best = each if each.step_ns <= best.step_ns else best
        yield _point(each.plan, best.line)


def _point(made: Plan, line: Timeline) -> Point:
    return Point(
        planner=made.planner,
        budget_bytes=made.budget_bytes,
        step_ns=line.step_ns,
        lower_bound_ns=made.bound.lower_bound_ns if made.bound else None,
        stall_ns=line.stall_ns,
        peak_allocated_bytes=line.peak_allocated_bytes,
        peak_reserved_bytes=line.peak_reserved_bytes,
        swapped_out_bytes=line.swapped_out_bytes,
        swapped_back_bytes=line.swapped_back_bytes,
    )
