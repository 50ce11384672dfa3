"""Figures of a report: derived from its subject, and shown by all its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elbowroom.answers.pareto import Pareto
from elbowroom.plan import Bound, Plan, Recompute, Swap
from elbowroom.report.subject import Subject
from elbowroom.simulate.energy import Energy, energy_of
from elbowroom.simulate.simulate import compare
from elbowroom.step.last_step import last_step, why_kept
from elbowroom.step.plan_summary import sentences
from elbowroom.timeline import LANES, Span, Timeline
from elbowroom.trace import Category, Trace
from elbowroom.units import format_bytes, format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of every timeline, as text; `cells` are in the order of `Subject.timelines`."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes per category on the device at the allocated peak of one timeline, largest first."""

    title: str
    peak_allocated_bytes: int
    parts: tuple[tuple[Category, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRow:
    """One storage of the step and what the plan does with it.

    Attributes:
        made_by: name of the op that made it; "before the step" if it was there already.
        module: path of the module of that op.
        idle_ns: recorded time during which only autograd holds it; None if it is not saved or never idle.
        action: "keep", "swap" or "recompute".
        detail: where it goes and when, or why it is kept.
    """

    storage: int
    size_bytes: int
    dtype: str
    category: Category
    made_by: str
    module: str
    idle_ns: int | None
    action: str
    detail: str

    @property
    def decision(self) -> str:
        """What the plan does with it, in words."""
        return (
            f"keep: {self.detail}" if self.action == "keep" and self.detail else f"{self.action} {self.detail}".strip()
        )


HEADLINES: tuple[tuple[str, Callable[[Timeline], str]], ...] = (
    ("peak allocated", lambda line: format_bytes(line.peak_allocated_bytes)),
    ("peak reserved", lambda line: format_bytes(line.peak_reserved_bytes)),
    ("peak on the device", lambda line: format_bytes(line.peak_device_bytes)),
    ("step time", lambda line: format_ns(line.step_ns)),
    ("stall", lambda line: format_ns(line.stall_ns)),
    ("compute busy", lambda line: f"{line.utilisation:.1%}"),
    ("swapped out", lambda line: format_bytes(line.swapped_out_bytes)),
    ("swapped back", lambda line: format_bytes(line.swapped_back_bytes)),
    ("peak below the device", lambda line: _below(line)),
)

ENERGY = "energy, simulated"
"""Name of the row of joules, which a measured step leaves empty."""


def _below(line: Timeline) -> str:
    """Return the most bytes on the lower tiers as text; "" if the timeline has swaps without curves of these tiers."""
    known = any(curve.tier != "device" for curve in line.curves) or not line.swapped_out_bytes
    return format_bytes(line.peak_of("host", "allocated") + line.peak_of("disk", "allocated")) if known else ""


def headlines(subject: Subject) -> tuple[Row, ...]:
    """The headline figures, a row per figure and a cell per timeline."""
    lines = [line for _, line in subject.timelines]
    rows = [Row(name=name, cells=tuple(show(line) for line in lines)) for name, show in HEADLINES]
    found = [energy(subject, line) for line in lines]
    if any(found):
        rows.append(Row(name=ENERGY, cells=tuple("" if each is None else each.words for each in found)))
    return tuple(rows)


def energy(subject: Subject, line: Timeline) -> Energy | None:
    """Return the simulated energy of a simulated step; None for a measured one, and without trace or board power."""
    if line.source != "simulated" or subject.trace is None or subject.machine is None:
        return None
    return energy_of(line, subject.trace, subject.machine)


def peaks(subject: Subject) -> tuple[Peak, ...]:
    """Return what each timeline holds at its peak; timelines without that are left out."""
    return tuple(
        Peak(title=title, peak_allocated_bytes=line.peak_allocated_bytes, parts=line.at_peak)
        for title, line in subject.timelines
        if line.at_peak
    )


def accuracy(subject: Subject) -> str:
    """Say how far the simulated peak is from the measured one, in a sentence; "" without both."""
    if subject.simulated is None or subject.measured is None:
        return ""
    found = compare(subject.simulated, subject.measured)
    if not found.peak_error_bytes:
        return "the simulated peak is the measured one, to the byte"
    side = "above" if found.peak_error_bytes > 0 else "below"
    far = f"{format_bytes(abs(found.peak_error_bytes))} ({abs(found.peak_error):.2%})"
    return f"the simulated peak is {far} {side} the measured one"


def accuracy_of_time(subject: Subject) -> str:
    """Say how far the simulated step time is from the measured one, in a sentence; "" without both."""
    if subject.simulated is None or subject.measured is None:
        return ""
    found = compare(subject.simulated, subject.measured)
    return (
        f"the simulated step takes {format_ns(found.step_simulated_ns)}, {found.step_ratio:.2f} times the "
        f"{format_ns(found.step_measured_ns)} that were measured"
    )


def title(subject: Subject) -> str:
    """Name the report by what it is about: the curve or the plan, the machine, the trace."""
    parts: list[str] = []
    if subject.pareto is not None:
        parts.append("budget against step time")
    if subject.plan is not None:
        parts.append(f"{subject.plan.planner} within {format_bytes(subject.plan.budget_bytes)}")
    if subject.measured is not None:
        parts.append("measured")
    if subject.machine is not None:
        parts.append(subject.machine.name)
    if subject.trace is not None:
        parts.append(f"trace {subject.trace.id[:8]}")
    return f"elbowroom: {', '.join(parts) or 'timelines'}"


def memory_text(subject: Subject) -> str:
    """Describe the chart of memory, for readers who do not see it."""
    held = [f"{title} {format_bytes(line.peak_allocated_bytes)}" for title, line in subject.timelines]
    budget = f"; the budget is {format_bytes(subject.plan.budget_bytes)}" if subject.plan else ""
    return f"Line chart of memory over the step. Peak allocated: {', '.join(held)}{budget}."


def lanes_text(subject: Subject) -> str:
    """Describe the chart of lanes."""
    taken = [
        f"{title} {format_ns(line.step_ns)}, of which compute waits {format_ns(line.stall_ns)}"
        for title, line in subject.timelines
    ]
    return f"Bars of what runs when, on each lane. The step takes: {'; '.join(taken)}."


def pareto_text(subject: Subject) -> str:
    """Describe the chart of budgets; its points are in the table below it."""
    count = len(subject.pareto.points) if subject.pareto else 0
    return f"Line chart of step time against budget, {count} points, which the table after it lists."


def decisions(subject: Subject) -> str:
    """Say what the plan does, in a sentence; "" without a plan."""
    plan, trace = subject.plan, subject.trace
    if plan is None:
        return ""
    head = f"planner {plan.planner}, budget {format_bytes(plan.budget_bytes)}: "
    if not plan.decides:
        return head + "every storage is kept"
    if trace is None:
        recomputed = sum(len(each.storages) for each in plan.recomputes)
        return head + f"{len(plan.swaps)} storages are swapped, {recomputed} recomputed"
    return head + "; ".join(sentences(trace, plan))


def lane_rows(line: Timeline) -> Iterator[tuple[str, ...]]:
    """Yield (lane, kind, times, time, share of the step, bytes) as text for each lane and kind of its bars."""
    found: dict[tuple[str, str], list[Span]] = {}
    for span in line.spans:
        found.setdefault((span.lane, span.kind), []).append(span)
    for (lane, kind), spans in sorted(found.items(), key=lambda entry: (LANES.index(entry[1][0].lane), entry[0][1])):
        busy_ns, moved = sum(each.end_ns - each.start_ns for each in spans), sum(each.size_bytes for each in spans)
        share = f"{busy_ns / line.step_ns:.1%}" if line.step_ns else ""
        size = format_bytes(moved) if moved else ""
        yield lane, kind.replace("_", " "), f"{len(spans):,}", format_ns(busy_ns), share, size


def bound(subject: Subject) -> str:
    """Say how good the plan is, in a sentence; "" if nothing was proven."""
    proven = subject.plan.bound if subject.plan else None
    if proven is None:
        return ""
    return (
        f"{format_ns(proven.step_ns)} on {proven.machine}, {gap_text(proven)} above the lower bound of "
        f"{format_ns(proven.lower_bound_ns)}"
    )


def gap_text(proven: Bound) -> str:
    """Format the gap of a bound, such as "0.42%"."""
    return f"{proven.gap:.2%}" if proven.gap < float("inf") else "any share"


PARETO_COLUMNS = ("budget", "planner", "step time", "slowdown", "gap to the bound", "stall", "swapped out", "reserved")


def pareto_rows(curve: Pareto) -> Iterator[tuple[str, ...]]:
    """The points of a curve as text, in `PARETO_COLUMNS`."""
    for point in curve.points:
        bound_ns = point.lower_bound_ns
        yield (
            format_bytes(point.budget_bytes),
            point.planner,
            format_ns(point.step_ns),
            f"{curve.slowdown(point):.3f}",
            f"{(point.step_ns - bound_ns) / bound_ns:.2%}" if bound_ns else "",
            format_ns(point.stall_ns),
            format_bytes(point.swapped_out_bytes),
            format_bytes(point.peak_reserved_bytes),
        )


def machine(subject: Subject) -> str:
    """Name the machine and its links, in a sentence; "" without one."""
    if subject.machine is None:
        return ""
    links = [
        f"{link.upper} to {link.lower} {format_bytes(link.out_bytes_per_s)}/s and "
        f"{format_bytes(link.back_bytes_per_s)}/s back"
        for link in subject.machine.links
    ]
    return f"{subject.machine.name}: " + ("; ".join(links) or "no link to a lower tier")


def storages_title(subject: Subject) -> str:
    """Title of a table of some of `largest_storages`."""
    return "The largest storages" if subject.plan is None else "What the plan does to each storage: the largest"


def largest_storages(subject: Subject, most: int) -> tuple[StorageRow, ...]:
    """Return storages that are allocated in the last step, with the plan's decision on each.

    Those that the plan does not keep come first, and each of both parts by size: most plans keep the largest ones.

    Workspaces are left out: an op allocates and frees them itself, so a plan has no choice about them.

    Args:
        subject: the subject of the report; without a trace there are no rows.
        most: most rows.
    """
    trace = subject.trace
    if trace is None:
        return ()
    step = last_step(trace)
    done = _done_with(subject.plan) if subject.plan else {}
    present = [
        s for s, what in enumerate(trace.storages) if what.category != "workspace" and step.born[s] < step.gone[s]
    ]
    present.sort(key=lambda s: (s not in done, -trace.storages[s].size_bytes, s))
    shown = present[:most]
    makers = _makers(trace, set(shown))
    reasons = _reasons(trace, set(shown))
    return tuple(_row(trace, s, makers.get(s), done.get(s), reasons.get(s)) for s in shown)


@dataclass(frozen=True, slots=True)
class _Saved:
    """Facts of a saved storage: how long it is idle and why it may not move ("" if it may)."""

    idle_ns: int | None
    why_kept: str


def _makers(trace: Trace, wanted: set[int]) -> dict[int, int]:
    return {e.storage: e.op for e in trace.events if e.size_bytes > 0 and e.op >= 0 and e.storage in wanted}


def _reasons(trace: Trace, wanted: set[int]) -> dict[int, _Saved]:
    step = last_step(trace)
    found: dict[int, _Saved] = {}
    for n, save in enumerate(step.saves):
        if save.storage not in wanted:
            continue
        end = int(step.first_read[n])
        begin = min(int(step.idle_from[n]), end)
        idle_ns = int(step.at_ns[end - step.first_op] - step.at_ns[begin - step.first_op])
        blocked = why_kept(step, n)
        found[save.storage] = _Saved(None if save.idle_from is None else idle_ns, blocked or "")
    return found


def _done_with(plan: Plan) -> dict[int, Swap | Recompute]:
    done: dict[int, Swap | Recompute] = {swap.storage: swap for swap in plan.swaps}
    return done | {storage: each for each in plan.recomputes for storage in each.storages}


def _row(
    trace: Trace, storage: int, maker: int | None, done: Swap | Recompute | None, saved: _Saved | None
) -> StorageRow:
    what = trace.storages[storage]
    return StorageRow(
        storage=storage,
        size_bytes=what.size_bytes,
        dtype=what.dtype,
        category=what.category,
        made_by="before the step" if maker is None else trace.ops[maker].name,
        module="" if maker is None else trace.ops[maker].module,
        idle_ns=saved.idle_ns if saved else None,
        action="keep" if done is None else "swap" if isinstance(done, Swap) else "recompute",
        detail=_detail(trace, done, saved),
    )


def _detail(trace: Trace, done: Swap | Recompute | None, saved: _Saved | None) -> str:
    first = trace.steps[-1].first_op
    if done is None:
        return "not saved by autograd" if saved is None else saved.why_kept
    if isinstance(done, Recompute):
        ops = "1 op" if len(done.recipe) == 1 else f"{len(done.recipe)} ops"
        return f"{ops} run again before op {done.before_op - first}"
    swap = done
    back = (
        "never read back"
        if swap.back_before_op >= trace.steps[-1].end_op
        else f"back before op {swap.back_before_op - first}"
    )
    return f"to {swap.tier} after op {swap.out_after_op - first}, {back}"
