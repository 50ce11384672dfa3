"""Measured: the measured timeline of a recorded step: its spans and its curve of allocated bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from elbowroom.capture.drafts import StorageDraft
from elbowroom.capture.recording.profiler_stream import ExchangeSeen, OpSeen
from elbowroom.engine.entries import Happening
from elbowroom.machine import TierName
from elbowroom.timeline import Curve, Lane, Span
from elbowroom.trace import Category

COPY_LANES: tuple[Lane, Lane] = ("copy out", "copy back")
DISK_LANES: tuple[Lane, Lane] = ("disk write", "disk read")
WAIT = "wait for collectives"


class Clock(NamedTuple):
    """Start of the first op on the clock of ops, and that clock's lead over the clock of happenings."""

    start_ns: int
    offset_ns: int


class MovedStorage(NamedTuple):
    """A stall or transfer, and the storage of the trace that it was for; None for a storage of an earlier step."""

    happening: Happening
    storage: int | None


def spans_of(clock: Clock, ops: Sequence[OpSeen], moved: Iterable[MovedStorage], tier: TierName) -> tuple[Span, ...]:
    """Return ops, stalls and transfers as spans, in order of time.

    Args:
        clock: clock of the step.
        ops: all ops of the step.
        moved: the stalls and transfers that were recorded; those that ended before the step are left out.
        tier: where storages went.
    """
    spans = [
        Span(
            lane="compute",
            kind="op",
            name=op.name,
            start_ns=op.start_ns - clock.start_ns,
            end_ns=op.end_ns - clock.start_ns,
            op=index,
        )
        for index, op in enumerate(ops)
    ]
    starts = [op.start_ns for op in ops]
    lanes = DISK_LANES if tier == "disk" else COPY_LANES
    spans += [
        _span(each, clock, ops, starts, lanes)
        for each in moved
        if each.happening.end_ns + clock.offset_ns >= clock.start_ns
    ]
    return tuple(sorted(spans, key=lambda span: span.start_ns))


def with_exchanges(spans: tuple[Span, ...], clock: Clock, exchanges: Iterable[ExchangeSeen]) -> tuple[Span, ...]:
    """Return the spans with those of collectives, and of waits for them, in order of time.

    Compute waits where it does nothing and goes on only once a collective has ended. A wait inside an op, such as
    wait_tensor, is part of that op.

    Args:
        spans: ops, stalls and transfers.
        clock: clock of the step.
        exchanges: the collectives that were recorded; those that ended before the step are left out.
    """
    found = [
        Span(
            lane="collective",
            kind="exchange",
            name=each.name,
            start_ns=max(each.start_ns - clock.start_ns, 0),
            end_ns=each.end_ns - clock.start_ns,
            size_bytes=each.size_bytes,
        )
        for each in exchanges
        if each.end_ns >= clock.start_ns
    ]
    if not found:
        return spans
    ends, waits, until = sorted(each.end_ns for each in found), list[Span](), 0
    for span in spans:
        if span.lane != "compute":
            continue
        last = bisect_right(ends, span.start_ns) - 1
        if last >= 0 and ends[last] > until:
            waits.append(Span(lane="compute", kind="wait", name=WAIT, start_ns=until, end_ns=ends[last]))
        until = max(until, span.end_ns)
    return tuple(sorted((*spans, *found, *waits), key=lambda span: span.start_ns))


def _span(
    moved: MovedStorage, clock: Clock, ops: Sequence[OpSeen], starts: list[int], lanes: tuple[Lane, Lane]
) -> Span:
    happening, storage = moved
    begin = max(happening.start_ns + clock.offset_ns - clock.start_ns, 0)
    end = max(happening.end_ns + clock.offset_ns - clock.start_ns, begin)
    if happening.kind == "recompute":
        op = happening.op
        return Span(lane="compute", kind="recompute", name=ops[op].name, start_ns=begin, end_ns=end, op=op)
    if happening.kind == "stall":
        op = min(bisect_right(starts, happening.start_ns + clock.offset_ns), len(starts) - 1)
        return Span(lane="compute", kind="stall", name="stall", start_ns=begin, end_ns=end, op=op, storage=storage)
    out = happening.kind in ("swap_out", "disk_write")
    lanes = DISK_LANES if happening.kind.startswith("disk") else lanes
    return Span(
        lane=lanes[0] if out else lanes[1],
        kind="swap_out" if out else "swap_back",
        name=f"storage {storage}" if storage is not None else "storage of an earlier step",
        start_ns=begin,
        end_ns=end,
        storage=storage,
        size_bytes=happening.size_bytes,
    )


def curve_of(
    clock: Clock, changes: Iterable[tuple[int, int, int]], storages: Sequence[StorageDraft]
) -> tuple[Curve, tuple[tuple[Category, int], ...]]:
    """Return the allocated bytes over the step, and the bytes at their peak by category, the largest first.

    Args:
        clock: clock of the step.
        changes: (at_ns, storage, bytes) in order.
        storages: the storages by id.
    """
    at_ns: list[int] = []
    level: list[int] = []
    total = peak = 0
    held: dict[Category, int] = {}
    at_peak: dict[Category, int] = {}
    for when_ns, storage, change in changes:
        total += change
        category = storages[storage].category
        held[category] = held.get(category, 0) + change
        if total > peak:
            peak, at_peak = total, dict(held)
        at_ns.append(max(when_ns - clock.start_ns, at_ns[-1] if at_ns else 0, 0))
        level.append(max(total, 0))
    ordered = sorted(at_peak.items(), key=lambda pair: -pair[1])
    curve = Curve(tier="device", kind="allocated", at_ns=tuple(at_ns or [0]), size_bytes=tuple(level or [0]))
    return curve, tuple(pair for pair in ordered if pair[1] > 0)


@final
class DeviceClock:
    """Clock that stretches the host's time between marks to that of the device.

    Args:
        marks: (when the host set it, when the device reached it), at least one, in the order they were set.
    """

    def __init__(self, marks: Sequence[tuple[int, int]]) -> None:
        self._host_ns = [host_ns for host_ns, _ in marks]
        self._device_ns: list[int] = []
        for _, device_ns in marks:  # of several streams: time does not run backwards
            self._device_ns.append(max(device_ns, self._device_ns[-1] if self._device_ns else device_ns))

    def at(self, host_ns: int) -> int:
        """Return when the device did the work that the host issued at a time."""
        behind = bisect_right(self._host_ns, host_ns)
        before = max(behind - 1, 0)
        start_ns, from_ns = self._host_ns[before], self._device_ns[before]
        if not 0 < behind < len(self._host_ns):
            return from_ns + host_ns - start_ns
        host_took_ns, device_took_ns = self._host_ns[behind] - start_ns, self._device_ns[behind] - from_ns
        return from_ns + (host_ns - start_ns) * device_took_ns // max(1, host_took_ns)
