"""simulate: the last step of a trace, on a machine, under a plan, as a Timeline. With the empty plan: the estimate.

One compute lane runs the ops one after the other, with the recipes of recomputes between them. An op takes its recorded
time, or that of the algorithm chosen. The lanes of the links run the copies (lanes.py). A swapped storage leaves the
device at the first tick after its write ended, once it is idle. It counts again from the start of its swap back. A
recomputed one leaves as soon as it is idle, and counts again when its recipe makes it. While an op runs the device
curve shows the most it holds during that op.
Collectives run in parallel with compute where they can (step/overlap.py). Ignored: time between ops; copies and
collectives slow compute and each other down. Cost: linear in the ops, events, swaps and recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from elbowroom.allocator.settings import as_set_by_script
from elbowroom.errors import UsageError
from elbowroom.files import field_rules as rules
from elbowroom.machine import Machine, TierName
from elbowroom.plan import Plan
from elbowroom.simulate.curves import (
    Heights,
    allocated,
    at_peak,
    away_points,
    device_curve,
    held_at_peak,
    lower_curves,
)
from elbowroom.simulate.driver_waits import DRIVER, delayed, delays_of
from elbowroom.simulate.lane_queues import BACK, OUT, READ, WRITE, LaneUse
from elbowroom.simulate.lanes import Play, play
from elbowroom.simulate.reserved_curve import ReservedCurve, reserved_at
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.check import check_step
from elbowroom.step.last_step import LastStep, last_step, listed
from elbowroom.step.moves import Moves, moves_of_plan, tiers_of_plan
from elbowroom.step.overlap import BETWEEN, INSIDE, Overlap
from elbowroom.timeline import Lane, Span, SpanKind, Timeline
from elbowroom.trace import Trace
from elbowroom.units import format_bytes, format_ns

WAIT = "wait for a collective"
"""Name of the waits in a timeline."""
MOST_PLAYS = 4
"""Most times that a step is played until the places where storages leave agree with the waits for the driver."""


def simulate(trace: Trace, machine: Machine, plan: Plan | None = None) -> Timeline:
    """Simulate the last step of a trace.

    Args:
        trace: what the training does.
        machine: where it runs: the rates of its links are used; ops keep their recorded durations.
        plan: what to do with each storage; None keeps everything.

    Returns:
        The simulated timeline. `peak_allocated_bytes` depends on the trace and the plan alone.

    Raises:
        InvalidPlan: the plan contradicts the trace or the machine.
    """
    machine, plan = as_set_by_script(machine, trace), plan or _keeping(trace)
    step, moves, tiers = _checked(trace, machine, plan)
    done, reserved, delays = _played(step, moves, machine, tiers, plan)
    step = delayed(step, delays)
    heights = allocated(step, moves, done)
    device = [device_curve(step, moves, done, heights, "allocated")]
    if reserved is not None:
        held = Heights(level=reserved.level, before=reserved.before, beats=reserved.beats)
        device.append(device_curve(step, moves, done, held, "reserved"))
    return Timeline(
        source="simulated",
        trace_id=plan.trace_id,
        step_ns=done.step_ns,
        spans=_spans(step, moves, done, tiers, delays),
        curves=(*device, *lower_curves(step, moves, done, tiers)),
        at_peak=at_peak(step, moves, done, heights),
        outside_bytes=machine.outside_bytes,
    )


def held_storages(trace: Trace, machine: Machine, plan: Plan | None = None) -> tuple[tuple[int, int], ...]:
    """Return what the device holds at the allocated peak of `simulate` with the same arguments.

    Returns:
        (Storage, bytes), in no order. The storage is `NONE` for a workspace that the trace has no storage for.

    Raises:
        InvalidPlan: the plan contradicts the trace or the machine.
    """
    machine, plan = as_set_by_script(machine, trace), plan or _keeping(trace)
    step, moves, tiers = _checked(trace, machine, plan)
    done, _, delays = _played(step, moves, machine, tiers, plan)
    step = delayed(step, delays)
    return held_at_peak(step, moves, done, allocated(step, moves, done))


def _keeping(trace: Trace) -> Plan:
    return Plan(trace_id=trace.id, planner="keep_all", budget_bytes=rules.MAX_INT)


def _checked(trace: Trace, machine: Machine, plan: Plan) -> tuple[LastStep, Moves, Sequence[TierName]]:
    """Return the last step under a plan: its ops, its moves and the tiers they go to."""
    recorded = last_step(trace)
    check_step(recorded, plan, machine)
    step = with_algorithms(recorded, plan.algorithms)
    moves = moves_of_plan(step, plan)
    return step, moves, tiers_of_plan(step, plan, moves)


def _played(
    step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName], plan: Plan
) -> tuple[Play, ReservedCurve | None, Mapping[int, int]]:
    """Return the play, the reserved bytes (None without a caching allocator) and the waits for the driver by op.

    The waits depend on where storages leave, and that on the waits. So the step is played until they agree, or
    `MOST_PLAYS` times.
    """
    if machine.allocator == "exact":
        return play(step, moves, machine, tiers), None, {}
    as_recorded = not plan.decides
    delays: dict[int, int] = {}
    turns = MOST_PLAYS
    while True:
        now = delayed(step, delays)
        done = play(now, moves, machine, tiers)
        away, limit_bytes = away_points(now, moves, done), plan.budget_bytes
        reserved = reserved_at(now, moves, away, machine.allocator, as_recorded=as_recorded, limit_bytes=limit_bytes)
        found = delays_of(now, reserved.driven, done, machine.allocator)
        turns -= 1
        if found.keys() == delays.keys() or not turns:
            return done, reserved, delays
        delays = found


def _spans(
    step: LastStep, moves: Moves, done: Play, tiers: Sequence[TierName], delays: Mapping[int, int]
) -> tuple[Span, ...]:
    at_ns = done.position_ns.tolist()
    spans: list[Span] = []
    overlap = step.overlap
    for op in range(step.first_op, step.end_op):
        start, waits = at_ns[op - step.first_op], delays.get(op, 0)
        spans += _with_wait(_run("op", step, op, start), waits, "stall", DRIVER)
        if overlap is not None and op in overlap.waits_ns:
            spans[-1:] = _with_wait(spans[-1], overlap.waits_ns[op], "wait", WAIT)
    if overlap is not None:
        exchanges = _exchanges(step, overlap, done)
        called = {span.op for span in exchanges}
        spans = [span for span in spans if span.op not in called] + exchanges
    for rebuild, start in zip(moves.rebuilds, listed(done.run_ns), strict=True):
        starts = accumulate((step.own_ns(op) for op in rebuild.recipe), initial=start)
        spans += [_run("recompute", step, op, at) for op, at in zip(rebuild.recipe, starts, strict=False)]
    storage = listed(step.storage_of(moves.n))
    for stall in done.stalls:
        op = stall.position if stall.position < step.end_op else None
        name = "wait for room" if stall.for_write else "wait for data"
        start, end, waits_for = stall.start_ns, stall.end_ns, storage[stall.move]
        spans.append(
            Span(lane="compute", kind="stall", name=name, start_ns=start, end_ns=end, op=op, storage=waits_for)
        )
    two_hops = bool(done.staged)
    spans += [_transfer(copy, storage[copy.move], tiers[copy.move], two_hops, moves) for copy in done.copies]
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.end_ns)))


def _with_wait(run: Span, waits_ns: int, kind: SpanKind, name: str) -> list[Span]:
    """Return an op's span after the time that compute waits before it, which the span includes."""
    if not waits_ns:
        return [run]
    then = min(run.start_ns + waits_ns, run.end_ns)
    wait = Span(lane="compute", kind=kind, name=name, start_ns=run.start_ns, end_ns=then, op=run.op)
    return [wait, replace(run, start_ns=then)]


def _exchanges(step: LastStep, overlap: Overlap, done: Play) -> list[Span]:
    """Return the collectives, later by as much as compute is where they are called."""
    late_ns = (done.position_ns - step.at_ns).tolist()
    sizes = {each.op: each.size_bytes for each in step.trace.exchanges}
    return [
        Span(
            lane=BETWEEN if span.is_between else INSIDE,
            kind="exchange",
            name=step.trace.ops[span.op].name,
            start_ns=span.start_ns + late_ns[span.op - step.first_op],
            end_ns=span.end_ns + late_ns[span.op - step.first_op],
            op=span.op,
            size_bytes=sizes[span.op],
        )
        for span in overlap.spans
    ]


def _run(kind: SpanKind, step: LastStep, op: int, start_ns: int) -> Span:
    name = step.trace.ops[op].name
    end_ns = start_ns + (step.op_ns(op) if kind == "op" else step.own_ns(op))
    return Span(lane="compute", kind=kind, name=name, start_ns=start_ns, end_ns=end_ns, op=op)


def _transfer(copy: LaneUse, storage: int, tier: TierName, two_hops: bool, moves: Moves) -> Span:
    """Return one use of a lane as a span; a direct link from device to disk has the lanes of the disk."""
    near: tuple[Lane, Lane] = ("copy out", "copy back") if two_hops or tier == "host" else ("disk write", "disk read")
    lanes: dict[int, Lane] = {OUT: near[0], BACK: near[1], WRITE: "disk write", READ: "disk read"}
    return Span(
        lane=lanes[copy.lane],
        kind="swap_out" if copy.lane in (OUT, WRITE) else "swap_back",
        name=f"storage {storage}",
        start_ns=copy.start_ns,
        end_ns=copy.end_ns,
        storage=storage,
        size_bytes=int(moves.size[copy.move]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A simulated timeline compared with a measured one of the same step.

    Attributes:
        peak_allocated_simulated_bytes: peak of the simulated device curve.
        peak_allocated_measured_bytes: peak of the measured one.
        peak_error_bytes: simulated less measured.
        peak_error: |simulated - measured| / measured; if measured is 0, 1 where simulated is not, else 0.
        step_simulated_ns: simulated time of the step.
        step_measured_ns: measured time of the step.
        step_ratio: simulated / measured; 0 if the measured time is 0.
        stall_simulated_ns: simulated time that compute waited for copies.
        stall_measured_ns: measured time that compute waited for copies.
        swapped_simulated_bytes: (out, back), simulated.
        swapped_measured_bytes: (out, back), measured.
    """

    peak_allocated_simulated_bytes: int
    peak_allocated_measured_bytes: int
    peak_error_bytes: int
    peak_error: float
    step_simulated_ns: int
    step_measured_ns: int
    step_ratio: float
    stall_simulated_ns: int
    stall_measured_ns: int
    swapped_simulated_bytes: tuple[int, int]
    swapped_measured_bytes: tuple[int, int]

    def rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """For printing: (figure, simulated, measured, difference)."""
        simulated, measured = self.swapped_simulated_bytes, self.swapped_measured_bytes
        return (
            _row("peak allocated", self.peak_allocated_simulated_bytes, self.peak_allocated_measured_bytes),
            _row("step time", self.step_simulated_ns, self.step_measured_ns, format_ns),
            _row("stall", self.stall_simulated_ns, self.stall_measured_ns, format_ns),
            _row("swapped out", simulated[0], measured[0]),
            _row("swapped back", simulated[1], measured[1]),
        )


def _row(
    figure: str, simulated: int, measured: int, text: Callable[[int], str] = format_bytes
) -> tuple[str, str, str, str]:
    share = f" ({(simulated - measured) / measured:+.1%})" if measured else ""
    return figure, text(simulated), text(measured), f"{text(simulated - measured)}{share}"


def compare(one: Timeline, other: Timeline) -> Comparison:
    """Compare a simulated timeline with a measured one, given in either order.

    Raises:
        UsageError: both are simulated, or both measured.
    """
    if one.source == other.source:
        raise UsageError(
            f"compare: given two {one.source} timelines; allowed is one simulated and one measured; "
            "simulate a trace with elbowroom.simulate.simulate, measure a step with elbowroom.within"
        )
    simulated, measured = (one, other) if one.source == "simulated" else (other, one)
    peaks = simulated.peak_allocated_bytes, measured.peak_allocated_bytes
    return Comparison(
        peak_allocated_simulated_bytes=peaks[0],
        peak_allocated_measured_bytes=peaks[1],
        peak_error_bytes=peaks[0] - peaks[1],
        peak_error=abs(peaks[0] - peaks[1]) / peaks[1] if peaks[1] else float(peaks[0] > 0),
        step_simulated_ns=simulated.step_ns,
        step_measured_ns=measured.step_ns,
        step_ratio=simulated.step_ns / measured.step_ns if measured.step_ns else 0.0,
        stall_simulated_ns=simulated.stall_ns,
        stall_measured_ns=measured.stall_ns,
        swapped_simulated_bytes=(simulated.swapped_out_bytes, simulated.swapped_back_bytes),
        swapped_measured_bytes=(measured.swapped_out_bytes, measured.swapped_back_bytes),
    )
