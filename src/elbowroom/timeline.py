"""Timeline: the times and the bytes of one step. Simulated and measured timelines are the same type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from elbowroom.files import field_rules as rules
from elbowroom.files.record_files import Filed
from elbowroom.machine import TIERS, TierName
from elbowroom.notebook_tables import byte_bars, notebook_table
from elbowroom.trace import CATEGORIES, Category
from elbowroom.units import format_bytes, format_ns

Lane = Literal["compute", "copy out", "copy back", "disk write", "disk read", "collective", "network"]
LANES: tuple[Lane, ...] = ("compute", "copy out", "copy back", "disk write", "disk read", "collective", "network")
SpanKind = Literal["op", "stall", "swap_out", "swap_back", "recompute", "exchange", "wait"]
CurveKind = Literal["allocated", "reserved"]
Source = Literal["simulated", "measured"]
Mode = Literal["observe", "frugal", "plan", "keep"]
"""What a step of a run is: see `StepFigures.mode` in run/account.py."""
MODES: tuple[Mode, ...] = get_args(Mode)
SPAN_KINDS: tuple[SpanKind, ...] = ("op", "stall", "swap_out", "swap_back", "recompute", "exchange", "wait")
CURVE_KINDS: tuple[CurveKind, ...] = ("allocated", "reserved")
SOURCES: tuple[Source, ...] = ("simulated", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One bar on a lane. Times are nanoseconds from the start of the step.

    Attributes:
        lane: its lane: compute, one direction of a link, collectives inside a computer, or those over the network.
        kind: what happens in it.
        name: name of the op, or of the storage that is moved.
        start_ns: when it begins.
        end_ns: when it ends.
        op: for kind "op", "recompute" and "exchange", the op that runs; for "stall" and "wait", the one that waits;
            else None.
        storage: for transfers and stalls, the storage moved or waited for; else None.
        size_bytes: bytes moved by a transfer or an exchange, else 0.
    """

    lane: Lane
    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    op: int | None = None
    storage: int | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        rules.one_of("Span.lane", self.lane, LANES)
        rules.one_of("Span.kind", self.kind, SPAN_KINDS)
        rules.text("Span.name", self.name)
        rules.integer("Span.start_ns", self.start_ns)
        rules.integer("Span.end_ns", self.end_ns)
        if self.end_ns < self.start_ns:
            rules.refuse("Span.end_ns", self.end_ns, f"at least start_ns, {self.start_ns}")
        if self.op is not None:
            rules.integer("Span.op", self.op)
        if self.storage is not None:
            rules.integer("Span.storage", self.storage)
        rules.integer("Span.size_bytes", self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes held on one tier over time: from at_ns[i] on, size_bytes[i]. Both have the same length, at least 1.

    Attributes:
        tier: the tier that holds them.
        kind: "allocated" counts bytes in live blocks, "reserved" those that the allocator holds.
        at_ns: times from the start of the step, ascending.
        size_bytes: bytes from each of them on.
    """

    tier: TierName
    kind: CurveKind
    at_ns: tuple[int, ...]
    size_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        rules.one_of("Curve.tier", self.tier, TIERS)
        rules.one_of("Curve.kind", self.kind, CURVE_KINDS)
        rules.integers("Curve.at_ns", self.at_ns)
        rules.integers("Curve.size_bytes", self.size_bytes)
        if not self.at_ns or len(self.at_ns) != len(self.size_bytes):
            lengths = (len(self.at_ns), len(self.size_bytes))
            rules.refuse("Curve lengths of at_ns and size_bytes", lengths, "the same length, at least 1")
        rules.ascending("Curve.at_ns", self.at_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(Filed):
    """When everything in one step happens, and how many bytes each tier holds.

    Attributes:
        source: "simulated" or "measured".
        trace_id: the trace it belongs to; "" if there is none.
        step_ns: time from the start of the step to its end.
        spans: bars, ordered by start.
        curves: allocated bytes per tier, and reserved bytes of the device if its allocator holds more.
        at_peak: (category, bytes) on the device at the allocated peak, largest first.
        outside_bytes: device memory outside the allocator.
    """

    source: Source
    trace_id: str
    step_ns: int
    spans: tuple[Span, ...]
    curves: tuple[Curve, ...]
    at_peak: tuple[tuple[Category, int], ...] = ()
    outside_bytes: int = 0

    def __repr__(self) -> str:
        allocated, reserved = format_bytes(self.peak_allocated_bytes), format_bytes(self.peak_reserved_bytes)
        peaks = f"allocated {allocated}, reserved {reserved}"
        return f"<Timeline {self.source}: step {format_ns(self.step_ns)}, {len(self.spans)} spans, peak {peaks}>"

    def _repr_html_(self) -> str:
        """Return the step as a table for notebooks: its figures, and what it holds at the peak."""
        facts = (
            ("step time", format_ns(self.step_ns)),
            ("stall", format_ns(self.stall_ns)),
            (
                "swapped out and back",
                f"{format_bytes(self.swapped_out_bytes)}, {format_bytes(self.swapped_back_bytes)}",
            ),
            ("peak allocated", format_bytes(self.peak_allocated_bytes)),
            ("peak reserved", format_bytes(self.peak_reserved_bytes)),
        )
        held = [(category.replace("_", " "), size_bytes) for category, size_bytes in self.at_peak]
        bars = byte_bars(held, sum(size_bytes for _, size_bytes in held))
        return notebook_table(f"Timeline of a step, {self.source}", facts, bars, "on the device at the allocated peak")

    def __post_init__(self) -> None:
        rules.one_of("Timeline.source", self.source, SOURCES)
        rules.text("Timeline.trace_id", self.trace_id)
        rules.integer("Timeline.step_ns", self.step_ns)
        rules.integer("Timeline.outside_bytes", self.outside_bytes)
        rules.records("Timeline.spans", self.spans, Span)
        rules.ascending("Timeline.spans.start_ns", tuple(span.start_ns for span in self.spans))
        rules.records("Timeline.curves", self.curves, Curve)
        rules.distinct("Timeline.curves", [(curve.tier, curve.kind) for curve in self.curves])
        self._check_at_peak()

    def _check_at_peak(self) -> None:
        rules.tuples("Timeline.at_peak", self.at_peak, 2)
        for category, size_bytes in self.at_peak:
            rules.one_of("Timeline.at_peak category", category, CATEGORIES)
            rules.integer("Timeline.at_peak bytes", size_bytes)
        rules.distinct("Timeline.at_peak category", [category for category, _ in self.at_peak])
        rules.ascending("Timeline.at_peak bytes, from the last", tuple(size for _, size in reversed(self.at_peak)))

    @property
    def peak_allocated_bytes(self) -> int:
        """Maximum of the device's allocated curve."""
        return self.peak_of("device", "allocated")

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum of the device's reserved curve; without one, of the allocated curve."""
        return max(self.peak_of("device", "reserved"), self.peak_allocated_bytes)

    @property
    def peak_device_bytes(self) -> int:
        """Reserved peak plus the bytes outside the allocator."""
        return self.peak_reserved_bytes + self.outside_bytes

    @property
    def stall_ns(self) -> int:
        """Time that compute waited for copies."""
        return sum(span.end_ns - span.start_ns for span in self.spans if span.kind == "stall")

    @property
    def wait_ns(self) -> int:
        """Time that compute waited for collectives: for what they bring, or for other ranks to join."""
        return sum(span.end_ns - span.start_ns for span in self.spans if span.kind == "wait")

    @property
    def exchange_ns(self) -> int:
        """Time of the collectives, hidden behind compute or not."""
        return sum(span.end_ns - span.start_ns for span in self.spans if span.kind == "exchange")

    @property
    def recompute_ns(self) -> int:
        """Time that compute ran ops again."""
        return sum(span.end_ns - span.start_ns for span in self.spans if span.kind == "recompute")

    @property
    def busy_ns(self) -> int:
        """Time in which compute runs ops, those that run again included."""
        busy = (span for span in self.spans if span.lane == "compute" and span.kind not in ("stall", "wait"))
        return sum(span.end_ns - span.start_ns for span in busy)

    @property
    def utilisation(self) -> float:
        """The part of the step in which compute is busy; 0 if the step takes no time."""
        return self.busy_ns / self.step_ns if self.step_ns else 0.0

    @property
    def swapped_out_bytes(self) -> int:
        """Bytes that left the device."""
        return self._moved_bytes("swap_out", "copy out")

    @property
    def swapped_back_bytes(self) -> int:
        """Bytes that came back to the device."""
        return self._moved_bytes("swap_back", "copy back")

    def _moved_bytes(self, kind: SpanKind, lane: Lane) -> int:
        """Count bytes moved by the device's own lane: `lane`, or the disk's for storages that `lane` did not move."""
        moved = [span for span in self.spans if span.kind == kind]
        copied = {span.storage for span in moved if span.lane == lane}
        return sum(span.size_bytes for span in moved if span.lane == lane or span.storage not in copied)

    def breakdown(self) -> dict[Category, int]:
        """Bytes per category on the device at the allocated peak, largest first."""
        return dict(self.at_peak)

    def peak_of(self, tier: TierName, kind: CurveKind) -> int:
        """Return the maximum of one curve; 0 if the timeline has no such curve."""
        return max((max(c.size_bytes) for c in self.curves if c.tier == tier and c.kind == kind), default=0)
