"""Timeline: when everything of one step happens, and the bytes. Simulated and measured ones are the same type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elbowroom.machine import TierName
from elbowroom.trace import Category

Lane = Literal["compute", "copy out", "copy back", "disk write", "disk read", "collective"]
LANES: tuple[Lane, ...] = ("compute", "copy out", "copy back", "disk write", "disk read", "collective")
SpanKind = Literal["op", "stall", "swap_out", "swap_back"]
SPAN_KINDS: tuple[SpanKind, ...] = ("op", "stall", "swap_out", "swap_back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One bar on a lane. Times are nanoseconds from the start of the step.

    Attributes:
        op: for kind "op" and "stall", the op it is, or that waits; else None.
        storage: for transfers and stalls, the storage moved or waited for; else None.
        size_bytes: bytes moved by a transfer, else 0.
    """

    lane: Lane
    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    op: int | None = None
    storage: int | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Bytes held on one tier over time: from at_ns[i] on, size_bytes[i]. Both have the same length, at least 1."""

    tier: TierName
    kind: Literal["allocated", "reserved"]
    at_ns: tuple[int, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step.

    Attributes:
        source: "simulated" or "measured".
        trace_id: the trace it belongs to; "" where there is none.
        step_ns: from the start of the step to its end.
        spans: bars, ordered by start.
        curves: allocated (and, where the allocator holds more, reserved) bytes per tier.
        at_peak: (category, bytes) on the device at the allocated peak, largest first.
        outside_bytes: device memory outside the allocator.
    """

    source: Literal["simulated", "measured"]
    trace_id: str
    step_ns: int
    spans: tuple[Span, ...]
    curves: tuple[Curve, ...]
    at_peak: tuple[tuple[Category, int], ...] = ()
    outside_bytes: int = 0

    @property
    def peak_allocated_bytes(self) -> int:
        """Maximum of the device's allocated curve."""
        return self.peak_of("device", "allocated")

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum of the device's reserved curve; the allocated one where the allocator holds nothing more."""
        return max(self.peak_of("device", "reserved"), self.peak_allocated_bytes)

    @property
    def peak_device_bytes(self) -> int:
        """Reserved peak plus what lies outside the allocator."""
        return self.peak_reserved_bytes + self.outside_bytes

    @property
    def stall_ns(self) -> int:
        """Time compute waited for copies."""
        return sum(span.end_ns - span.start_ns for span in self.spans if span.kind == "stall")

    @property
    def swapped_out_bytes(self) -> int:
        """Bytes that left the device."""
        return sum(span.size_bytes for span in self.spans if span.kind == "swap_out")

    @property
    def swapped_back_bytes(self) -> int:
        """Bytes that came back to the device."""
        return sum(span.size_bytes for span in self.spans if span.kind == "swap_back")

    def breakdown(self) -> dict[Category, int]:
        """Bytes per category on the device at the allocated peak, largest first."""
        return dict(self.at_peak)

    def peak_of(self, tier: TierName, kind: Literal["allocated", "reserved"]) -> int:
        """Maximum of one curve, 0 where the timeline has none."""
        return max((max(c.size_bytes) for c in self.curves if c.tier == tier and c.kind == kind), default=0)
