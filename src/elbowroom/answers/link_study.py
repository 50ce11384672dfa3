"""Link study: what a plan costs over the link between device and host, on one GPU after the other.

Computes: on each GPU a plan for the same part of what a step reserves with everything kept, and its simulation: how
long the step takes, what it moves, and how busy the link is. Then the least budget with which a step is slower than
with everything kept by at most a factor, by halving the budgets between one that is fast enough and one that is not.
Reference: the talk on TFLMS that compares PCIe with NVLink 2.0 (docs/study.md).
Optimal: never, as in study_points.py. The least budget is found to `PRECISION` of what everything kept reserves.
Ignores: other processes on the same link; what the simulator ignores.
Cost: a capture, and about six plans for each GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from elbowroom.answers.study_points import AHEAD, PlanEffort, StudyCase
from elbowroom.errors import Infeasible
from elbowroom.planners import asking, requested
from elbowroom.planners.ask import Asking
from elbowroom.planners.budget.budgets import below_device, first_lower
from elbowroom.planners.budget.least import Weighed
from elbowroom.timeline import Lane, Timeline
from elbowroom.units import Budget
from elbowroom.watch import ENDS, Watch

SHARE = Fraction(1, 2)
"""Default budget, as a part of what a step reserves with everything kept."""
SLOWDOWN = 1.1
"""Default factor on the step time for the least budget."""
PRECISION = Fraction(1, 16)
"""Part of what everything kept reserves to which the least budget is found."""

LinkLanes = tuple[Lane, Lane]
HOST_LANES: LinkLanes = ("copy out", "copy back")
DISK_LANES: LinkLanes = ("disk write", "disk read")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedLink:
    """What a plan costs on one GPU. Times are simulated.

    Attributes:
        machine: name of the GPU.
        lower: the tier at the other end of its link, "host" or "disk".
        out_bytes_per_s: rate of the link from the device.
        back_bytes_per_s: rate of the link to the device.
        kept_bytes: bytes that a step reserves with everything kept.
        kept_step_ns: time of that step.
        budget_bytes: budget of the plan.
        step_ns: time of a step under the plan; None if no plan meets the budget.
        stall_ns: part of it in which compute waits for copies.
        utilisation: part of it in which compute is busy.
        out_bytes: bytes that leave the device in a step.
        back_bytes: bytes that come back.
        out_busy: part of the step in which the link moves bytes from the device.
        back_busy: part of the step in which it moves bytes to the device.
        least_bytes: least budget that was found with which a step is at most `LinkStudy.slowdown` times as long; None
            if the time was over before.
        least_feasible_bytes: least budget that a plan meets, if none meets `budget_bytes`; else None.
    """

    machine: str
    lower: str
    out_bytes_per_s: int
    back_bytes_per_s: int
    kept_bytes: int
    kept_step_ns: int
    budget_bytes: int
    step_ns: int | None
    stall_ns: int = 0
    utilisation: float = 0.0
    out_bytes: int = 0
    back_bytes: int = 0
    out_busy: float = 0.0
    back_busy: float = 0.0
    least_bytes: int | None = None
    least_feasible_bytes: int | None = None

    @property
    def slowdown(self) -> float | None:
        """How many times as long a step takes as with everything kept; None without a plan."""
        return self.step_ns / self.kept_step_ns if self.step_ns is not None and self.kept_step_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStudy:
    """The same training over several links.

    Attributes:
        script: the script, as it was given.
        slowdown: allowed factor on the step time for `StudiedLink.least_bytes`.
        links: the GPUs, in the order in which they were named.
        early: what was not looked at, if the study ended early; else "".
    """

    script: str
    slowdown: float
    links: tuple[StudiedLink, ...]
    early: str = ""

    @property
    def trains(self) -> bool:
        """Whether a plan was found on any GPU."""
        return any(link.step_ns is not None for link in self.links)


def studied_links(
    script: str,
    cases: Sequence[StudyCase],
    effort: PlanEffort,
    watch: Watch,
    *,
    budget_bytes: int | None = None,
    slowdown: float = SLOWDOWN,
) -> LinkStudy:
    """Compare what plans cost on several GPUs.

    Args:
        script: name of the script.
        cases: a case for each GPU; its memory does not count.
        effort: how plans are made.
        watch: shows progress, and limits the time.
        budget_bytes: bytes that a step may reserve; None for `SHARE` of what it reserves with everything kept.
        slowdown: allowed factor on the step time for the least budget.

    Raises:
        TimeOver: the time is over before any GPU was looked at.
        CaptureError: the script could not be captured.
    """
    found: list[StudiedLink] = []
    for index, case in enumerate(cases):
        try:
            watch.left_s()
            for each in cases[index : index + AHEAD]:
                each.begin(True)
            found.append(_studied(case, effort, watch, budget_bytes, slowdown))
        except ENDS as problem:
            if not found:
                raise
            watch.ends_early(problem, f"{len(found)} of {len(cases)} GPUs were looked at")
            break
    return LinkStudy(script=script, slowdown=slowdown, links=tuple(found), early=watch.early)


def _studied(
    case: StudyCase, effort: PlanEffort, watch: Watch, budget_bytes: int | None, slowdown: float
) -> StudiedLink:
    machine, ask = case.machine, _ask(case, effort, watch)
    kept = ask.kept()
    kept_bytes = kept.line.peak_reserved_bytes
    within_bytes = int(kept_bytes * SHARE) if budget_bytes is None else budget_bytes
    link = first_lower(machine)
    known = StudiedLink(
        machine=machine.name,
        lower=link.lower if link else "",
        out_bytes_per_s=link.out_bytes_per_s // link.shared_by if link else 0,
        back_bytes_per_s=link.back_bytes_per_s // link.shared_by if link else 0,
        kept_bytes=kept_bytes,
        kept_step_ns=kept.step_ns,
        budget_bytes=within_bytes,
        step_ns=None,
    )
    tried: list[Weighed] = []
    try:
        tried.append(ask.weigh(within_bytes))
        known = _with_line(known, tried[0].line)
    except Infeasible as problem:
        known = replace(known, least_feasible_bytes=problem.least_feasible_bytes)
    try:
        least_bytes = _least(ask.weigh, kept, tried, int(kept.step_ns * slowdown), known.least_feasible_bytes or 0)
    except ENDS as problem:
        watch.ends_early(problem, f"the least budget on {machine.name} was not found")
        return known
    return replace(known, least_bytes=least_bytes)


def _ask(case: StudyCase, effort: PlanEffort, watch: Watch) -> Asking:
    request = requested(effort.planner, allow=effort.allow, time_limit_s=effort.time_limit_s)
    lower = below_device(case.machine, Budget())
    return asking(case.in_parts(), case.machine, lower, request, watch=watch, shared={})


def _with_line(known: StudiedLink, line: Timeline) -> StudiedLink:
    lanes = DISK_LANES if known.lower == "disk" else HOST_LANES
    out_busy, back_busy = (_busy(line, lane) for lane in lanes)
    return replace(
        known,
        step_ns=line.step_ns,
        stall_ns=line.stall_ns,
        utilisation=line.utilisation,
        out_bytes=line.swapped_out_bytes,
        back_bytes=line.swapped_back_bytes,
        out_busy=out_busy,
        back_busy=back_busy,
    )


def _busy(line: Timeline, lane: Lane) -> float:
    """Return the part of a step in which a lane moves bytes."""
    moving_ns = sum(span.end_ns - span.start_ns for span in line.spans if span.lane == lane)
    return moving_ns / line.step_ns if line.step_ns else 0.0


def _least(
    weigh: Callable[[int], Weighed], kept: Weighed, tried: Sequence[Weighed], limit_ns: int, slow_bytes: int
) -> int:
    """Return the least budget that was found with which a step takes at most `limit_ns`.

    Args:
        weigh: plans for a budget; raises Infeasible.
        kept: the step with everything kept, which is fast enough.
        tried: plans that were made before.
        limit_ns: time that a step may take.
        slow_bytes: a budget below which there is no plan; 0 if that is not known.
    """
    kept_bytes = kept.plan.budget_bytes
    low = max([slow_bytes, *(each.plan.budget_bytes for each in tried if each.step_ns > limit_ns)])
    high = min([kept_bytes, *(each.plan.budget_bytes for each in tried if each.step_ns <= limit_ns)])
    while high - low > max(1, int(kept_bytes * PRECISION)):
        middle = (low + high) // 2
        try:
            fast = weigh(middle).step_ns <= limit_ns
        except Infeasible as problem:
            low = max(middle, min(high - 1, problem.least_feasible_bytes))
            continue
        low, high = (low, middle) if fast else (middle, high)
    return high
