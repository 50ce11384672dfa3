"""Study points: what a training needs in one case of a what-if study, and how long its step takes there.

Computes: the estimate of the case, and a simulation of its step. Where memory is short, the step is that of a plan for
the memory there is. Plans are made with little effort (`EFFORT_S`), as a study asks for many.
Reference: answers/estimate.py, and the planners.
Optimal: never. `elbowroom plan` looks longer, and may find a faster step.
Ignores: what the simulator ignores. Where a case with more memory has no plan, the least that it was found to need
counts for the cases with less, which are not planned again.
Cost: one or two captures for each script and GPU, and a plan for each case that is short of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from elbowroom.answers.estimate import estimate
from elbowroom.answers.pareto import EFFORT_S
from elbowroom.errors import CaptureError, Infeasible
from elbowroom.machine import Machine
from elbowroom.planners import DEFAULT_PLANNER, Means, asking, requested
from elbowroom.planners.budget.budgets import below_device
from elbowroom.simulate.energy import Energy, energy_of
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.units import Budget
from elbowroom.watch import ENDS, Watch

StudyKind = Literal["budget", "batch", "resolution", "gpu"]
AHEAD = 3
"""Cases whose captures begin before they are asked for, the present one included."""
Outcome = Literal["kept", "planned", "no plan", "failed"]
"""With everything kept, under a plan, without a plan that was found, or not to be captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPoint:
    """One case of a study. Its times are simulated.

    Attributes:
        value: what differs between the cases: bytes of the budget, of the GPU's memory, or the value of the argument.
        machine: name of the GPU.
        memory_bytes: device memory of the case, that outside the allocator included.
        outcome: "kept" if it trains with everything kept, "planned" if a plan does it, "no plan" if none was found,
            "failed" if the script could not be captured.
        needed_bytes: least device memory in which everything is kept; None if the capture failed.
        retries: number of times that the allocator empties its cache to keep everything; 0 for other outcomes.
        kept_step_ns: time of a step with memory for everything; None if the capture failed.
        step_ns: time of a step within the memory of the case; None if it does not train there.
        host_bytes: most bytes on the host.
        disk_bytes: most bytes on the disk.
        out_bytes: bytes that leave the device in a step.
        back_bytes: bytes that come back.
        least_bytes: least device memory that a plan was found to need; None if a plan was found, or not looked for.
        problem: why the capture failed; "" if it did not.
        energy: simulated energy of a step within the memory of the case; None if it does not train there, or the
            board's power is not known.
    """

    value: int
    machine: str
    memory_bytes: int
    outcome: Outcome
    needed_bytes: int | None = None
    retries: int = 0
    kept_step_ns: int | None = None
    step_ns: int | None = None
    host_bytes: int = 0
    disk_bytes: int = 0
    out_bytes: int = 0
    back_bytes: int = 0
    least_bytes: int | None = None
    problem: str = ""
    energy: Energy | None = None

    @property
    def slowdown(self) -> float | None:
        """How many times as long a step takes as with memory for everything; None if it does not train."""
        return self.step_ns / self.kept_step_ns if self.step_ns is not None and self.kept_step_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The answer of a what-if study.

    Attributes:
        kind: what was asked.
        script: the script, as it was given.
        machine: name of the GPU; "" if GPUs are compared.
        varied: what differs between the cases, in words.
        points: the cases by rising value; GPUs by rising memory.
        own_bytes: for "budget": the budget that the GPU itself has; else None.
        more_bytes: for "budget": the budget with the memory that was asked about; None without that.
        not_looked: GPUs of the list that the answer does not depend on, and that were not looked at.
        early: what was not looked at, if the study ended early; else "".
    """

    kind: StudyKind
    script: str
    machine: str
    varied: str
    points: tuple[StudyPoint, ...]
    own_bytes: int | None = None
    more_bytes: int | None = None
    not_looked: tuple[str, ...] = ()
    early: str = ""

    @property
    def trains(self) -> bool:
        """Whether the script trains in any case."""
        return any(point.step_ns is not None for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEffort:
    """How plans of a study are made.

    Attributes:
        planner: name of the planner.
        allow: means of the plans; None for the default ones.
        time_limit_s: seconds that the search for one plan may take.
    """

    planner: str = DEFAULT_PLANNER
    allow: Sequence[Means] | None = None
    time_limit_s: float = EFFORT_S


def _begin_none(_: bool) -> None:
    """Begin nothing: a capture is made when it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCase:
    """A case to look at.

    Attributes:
        value: as in `StudyPoint`.
        machine: the GPU, with the memory of the case as its capacity.
        trace: captures the script as it is.
        in_parts: captures it with optimizers' steps in parts, as plans need it.
        begin: begins one of the two, to be asked for soon; True is for that with parts.
    """

    value: int
    machine: Machine
    trace: Callable[[], Trace]
    in_parts: Callable[[], Trace]
    begin: Callable[[bool], None] = _begin_none


def looked_at(
    cases: Sequence[StudyCase], effort: PlanEffort, watch: Watch, *, stops: bool = False
) -> tuple[StudyPoint, ...]:
    """Look at cases one after the other; end early, with the points so far, when the time is over.

    Args:
        cases: the cases, those with the most room first.
        effort: how plans are made.
        watch: shows progress, and limits the time.
        stops: whether the study ends at the first case without a plan, as the next ones need more, and at the first
            one that is as the case before.

    Raises:
        TimeOver: the time is over before any case was looked at.
        CaptureError: the script fails in the first case.
    """
    found: list[StudyPoint] = []
    plans = _Plans(effort, watch)
    for index, case in enumerate(cases):
        least_bytes = next((point.least_bytes for point in found if point.least_bytes is not None), 0)
        short = bool(found) and found[-1].outcome == "planned"
        soon = cases[index : index + AHEAD]
        try:
            _begin(soon, planned=short)
            found.append(_point(case, plans, least_bytes, soon))
        except CaptureError as problem:
            if not found:
                raise
            found.append(_failed(case, problem))
        except ENDS as problem:
            if not found:
                raise
            watch.ends_early(problem, f"{len(found)} of {len(cases)} cases were looked at")
            break
        if stops and (found[-1].step_ns is None or repeats(found)):
            break
    return tuple(found)


def repeats(points: Sequence[StudyPoint]) -> bool:
    """Tell whether the last case needs and takes what the one before does: its value changes nothing any more."""
    last = [(point.needed_bytes, point.kept_step_ns) for point in points[-2:]]
    return len(last) == 2 and last[0] == last[1] and last[0][0] is not None


def _failed(case: StudyCase, problem: CaptureError) -> StudyPoint:
    memory_bytes = case.machine.tiers[0].capacity_bytes
    said = str(problem).splitlines()[0]
    return StudyPoint(
        value=case.value, machine=case.machine.name, memory_bytes=memory_bytes, outcome="failed", problem=said
    )


def _begin(cases: Sequence[StudyCase], *, planned: bool) -> None:
    """Begin the captures of cases, the first ones first; with `planned` also those for plans."""
    for case in cases:
        case.begin(False)
        if planned:
            case.begin(True)


def _point(case: StudyCase, plans: _Plans, least_bytes: int, soon: Sequence[StudyCase]) -> StudyPoint:
    """Look at one case.

    Args:
        case: the case.
        plans: makes plans.
        least_bytes: the least memory that a plan of another case was found to need, or 0.
        soon: this case and the next ones, which will be short of memory if this one is.
    """
    machine, trace = case.machine, case.trace()
    capacity_bytes = machine.tiers[0].capacity_bytes
    answer, kept_ns = estimate(trace, machine, plans=False), kept_step_ns(trace, machine)
    point = StudyPoint(
        value=case.value,
        machine=machine.name,
        memory_bytes=capacity_bytes,
        outcome="kept",
        needed_bytes=answer.needed_bytes,
        retries=answer.retries if answer.fits else 0,
        kept_step_ns=kept_ns,
        step_ns=kept_ns,
        energy=answer.energy,
    )
    if answer.fits:
        return point
    if capacity_bytes < least_bytes:
        return replace(point, outcome="no plan", step_ns=None, energy=None, least_bytes=least_bytes)
    _begin(soon, planned=True)
    try:
        in_parts = case.in_parts()
        line = plans.line(in_parts, machine)
    except Infeasible as problem:
        found_bytes = problem.least_feasible_bytes + machine.outside_bytes
        return replace(point, outcome="no plan", step_ns=None, energy=None, least_bytes=found_bytes)
    return replace(
        point,
        outcome="planned",
        step_ns=line.step_ns,
        energy=energy_of(line, in_parts, machine),
        host_bytes=line.peak_of("host", "allocated"),
        disk_bytes=line.peak_of("disk", "allocated"),
        out_bytes=line.swapped_out_bytes,
        back_bytes=line.swapped_back_bytes,
    )


def kept_step_ns(trace: Trace, machine: Machine) -> int:
    """Return the simulated time of a step with memory for everything."""
    return simulate(trace, replace(machine, allocator="exact")).step_ns


@final
class _Plans:
    """Plans of a study. Those for one trace on one GPU, with more or less memory, begin with one another.

    Args:
        effort: how plans are made.
        watch: shows progress, and limits the time.
    """

    def __init__(self, effort: PlanEffort, watch: Watch) -> None:
        self._effort, self._watch = effort, watch
        self._shared: dict[tuple[str, Machine], dict[object, Any]] = {}

    def line(self, trace: Trace, machine: Machine) -> Timeline:
        """Plan a step for the memory of a machine; return the simulation of the plan.

        Raises:
            Infeasible: no plan was found.
            TimeOver: no time is left.
        """
        effort, capacity_bytes = self._effort, machine.tiers[0].capacity_bytes
        request = requested(effort.planner, allow=effort.allow, time_limit_s=effort.time_limit_s)
        shared = self._shared.setdefault((trace.id, with_memory(machine, 0)), {})
        lower = below_device(machine, Budget())
        ask = asking(trace, machine, lower, request, watch=self._watch, shared=shared)
        return ask.weigh(max(0, capacity_bytes - machine.outside_bytes)).line


def with_memory(machine: Machine, memory_bytes: int) -> Machine:
    """Return a machine whose device has another capacity."""
    device, *lower = machine.tiers
    return replace(machine, tiers=(replace(device, capacity_bytes=memory_bytes), *lower))
