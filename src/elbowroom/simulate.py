"""simulate: the last step of a trace, on a machine, under a plan, as a Timeline. With the empty plan: the estimate.

One compute lane runs the ops one after the other, each for its recorded time; the lanes of the links run the copies
(lanes.py). A swapped storage leaves the device at the first tick after its write ended, once it is idle, and counts
again from the start of its swap back. While an op runs the device curve shows the most it holds during that op.
Ignored: time between ops, and that copies slow compute down. Cost: linear in the ops, events and swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elbowroom.allocator.of_trace import reserved_at
from elbowroom.checks import check_step
from elbowroom.errors import UsageError
from elbowroom.lanes import NEVER, Play, play
from elbowroom.lifetimes import Ints, LastStep, allocated_at, last_step, listed
from elbowroom.machine import Machine, TierName
from elbowroom.moves import Moves, moves_of_plan, tiers_of_plan
from elbowroom.plan import Plan
from elbowroom.timeline import Curve, CurveKind, Lane, Span, SpanKind, Timeline
from elbowroom.trace import Category, Trace
from elbowroom.units import format_bytes, format_ns

OUT_LANE: dict[TierName, Lane] = {"host": "copy out", "disk": "disk write"}
BACK_LANE: dict[TierName, Lane] = {"host": "copy back", "disk": "disk read"}


def simulate(trace: Trace, machine: Machine, plan: Plan | None = None) -> Timeline:
    """Say what the last step of a trace will do.

    Args:
        trace: what the training does.
        machine: where it runs; the rates of its links are used, the recorded durations of the ops as they are.
        plan: what to do with each storage; None keeps everything.

    Returns:
        The simulated timeline. `peak_allocated_bytes` depends on the trace and the plan alone.

    Raises:
        InvalidPlan: the plan contradicts the trace or the machine.
    """
    step = last_step(trace)
    plan = plan or Plan(trace_id=trace.id, planner="keep_all", budget_bytes=int(step.level.max()))
    check_step(step, plan, machine)
    moves = moves_of_plan(step, plan)
    tiers = tiers_of_plan(step, plan, moves)
    done = play(step, moves, machine, tiers)
    level = step.level - _away(step, moves, done)
    device = [_device_curve(step, done, level, "allocated")]
    if machine.allocator != "exact":
        reserved = reserved_at(step, moves, *_away_points(step, moves, done), machine.allocator)
        device.append(_device_curve(step, done, reserved, "reserved"))
    return Timeline(
        source="simulated",
        trace_id=plan.trace_id,
        step_ns=done.step_ns,
        spans=_spans(step, moves, done, tiers),
        curves=(*device, *_lower_curves(step, moves, done, tiers)),
        at_peak=_at_peak(step, moves, done, int(level.argmax())),
        outside_bytes=machine.outside_bytes,
    )


def _away_points(step: LastStep, moves: Moves, done: Play) -> tuple[Ints, Ints]:
    """Per move, points [begin, end) at which its bytes have left the device; empty where they never do."""
    begin, end = step.window(moves.n, moves.back)
    room_ns = np.append(done.room_ns[step.ticks - step.first_op], np.iinfo(np.int64).max)
    left_at = np.append(step.points(step.ticks), len(step.level))[np.searchsorted(room_ns, done.out_end_ns)]
    begin = np.maximum(begin, left_at)
    begin[done.given_up | (done.out_start_ns == NEVER)] = len(step.level)
    return np.minimum(begin, end), end


def _away(step: LastStep, moves: Moves, done: Play) -> Ints:
    """Per point, the swapped bytes that are not on the device."""
    begin, end = _away_points(step, moves, done)
    change = np.zeros(len(step.level) + 1, np.int64)
    np.add.at(change, begin, moves.size)
    np.subtract.at(change, end, moves.size)
    return np.cumsum(change[:-1])


def _device_curve(step: LastStep, done: Play, level: Ints, kind: CurveKind) -> Curve:
    """For each op its maximum, and where compute waits before it, what is held meanwhile."""
    most = np.maximum.reduceat(level[: step.point_of[-1]], step.point_of[:-1])
    most = np.append(most, level[-1])
    arrived_ns = step.at_ns + np.concatenate([[0], (done.position_ns - step.at_ns)[:-1]])
    # Per position: on arrival, before its waits for room; then with the swaps back that start; then during the op.
    times = np.stack([arrived_ns, done.room_ns, done.position_ns], axis=1)
    values = np.stack([level[np.maximum(step.point_of - 1, 0)], level[step.point_of], most], axis=1)
    shown = np.stack([arrived_ns < done.room_ns, done.room_ns < done.position_ns, most >= 0], axis=1)
    at, size = times[shown], values[shown]
    new = np.concatenate([[True], size[1:] != size[:-1]])
    return Curve(tier="device", kind=kind, at_ns=tuple(at[new].tolist()), size_bytes=tuple(size[new].tolist()))


def _lower_curves(step: LastStep, moves: Moves, done: Play, tiers: Sequence[TierName]) -> list[Curve]:
    """Bytes on each lower tier, from the start of each write until its storage is freed or the write given up."""
    last_op = np.array([step.op_at(int(p)) for p in step.gone[step.storage_of(moves.n)]], np.int64) - step.first_op
    freed_ns = done.position_ns[last_op] + np.diff(step.at_ns)[last_op]
    until = np.where(done.given_up, done.out_end_ns, np.maximum(freed_ns, done.out_end_ns))
    curves: list[Curve] = []
    for tier in sorted(set(tiers)):
        on = np.array([name == tier for name in tiers]) & (done.out_start_ns != NEVER)
        times = np.concatenate([np.zeros(1, np.int64), done.out_start_ns[on], until[on]])
        change = np.concatenate([np.zeros(1, np.int64), moves.size[on], -moves.size[on]])
        at = np.unique(times)
        total = np.cumsum(np.bincount(np.searchsorted(at, times), weights=change)).astype(np.int64)
        curves.append(Curve(tier=tier, kind="allocated", at_ns=tuple(at.tolist()), size_bytes=tuple(total.tolist())))
    return curves


def _spans(step: LastStep, moves: Moves, done: Play, tiers: Sequence[TierName]) -> tuple[Span, ...]:
    trace, at_ns = step.trace, done.position_ns.tolist()
    spans: list[Span] = []
    for op in range(step.first_op, step.end_op):
        start = at_ns[op - step.first_op]
        end = start + trace.ops[op].duration_ns
        spans.append(Span(lane="compute", kind="op", name=trace.ops[op].name, start_ns=start, end_ns=end, op=op))
    storage = [step.saves[n].storage for n in listed(moves.n)]
    for stall in done.stalls:
        op = stall.position if stall.position < step.end_op else None
        name = "wait for room" if stall.for_write else "wait for data"
        start, end, waits_for = stall.start_ns, stall.end_ns, storage[stall.move]
        spans.append(
            Span(lane="compute", kind="stall", name=name, start_ns=start, end_ns=end, op=op, storage=waits_for)
        )
    spans += _transfers(moves, storage, [OUT_LANE[t] for t in tiers], "swap_out", done.out_start_ns, done.out_end_ns)
    spans += _transfers(
        moves, storage, [BACK_LANE[t] for t in tiers], "swap_back", done.back_start_ns, done.back_end_ns
    )
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.end_ns)))


def _transfers(
    moves: Moves, storage: list[int], lanes: list[Lane], kind: SpanKind, start_ns: Ints, end_ns: Ints
) -> list[Span]:
    size, starts, ends = moves.size.tolist(), start_ns.tolist(), end_ns.tolist()
    return [
        Span(
            lane=lanes[i],
            kind=kind,
            name=f"storage {storage[i]}",
            start_ns=starts[i],
            end_ns=ends[i],
            storage=storage[i],
            size_bytes=size[i],
        )
        for i in range(len(size))
        if starts[i] != NEVER
    ]


def _at_peak(step: LastStep, moves: Moves, done: Play, peak: int) -> tuple[tuple[Category, int], ...]:
    """Bytes per category on the device at one point, largest first."""
    begin, end = _away_points(step, moves, done)
    away = set(step.storage_of(moves.n[(begin <= peak) & (peak < end)]).tolist())
    total: dict[Category, int] = {}
    for storage in listed(allocated_at(step, peak)):
        what = step.trace.storages[storage]
        if storage not in away:
            total[what.category] = total.get(what.category, 0) + what.size_bytes
    return tuple(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A simulated timeline beside a measured one of the same step.

    Attributes:
        peak_allocated_simulated_bytes: peak of the simulated device curve.
        peak_allocated_measured_bytes: peak of the measured one.
        peak_error_bytes: simulated less measured.
        peak_error: |simulated - measured| / measured; 0 where both are 0.
        step_simulated_ns: simulated time of the step.
        step_measured_ns: measured time of the step.
        step_ratio: simulated / measured; 0 where nothing was measured.
        stall_simulated_ns: simulated time compute waited for copies.
        stall_measured_ns: the measured one.
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
    """Put a simulated timeline beside a measured one, given in either order.

    Raises:
        UsageError: both are simulated, or both measured.
    """
    if one.source == other.source:
        raise UsageError(
            f"compare: given two {one.source} timelines; allowed is one simulated and one measured; "
            "simulate a trace with elbowroom.simulate, measure a step with elbowroom.within"
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
