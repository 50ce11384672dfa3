"""Moved bytes: what a step copies between the tiers under a plan, by kind of storage and by link.

Computes: the sums over the copies of a timeline. What goes to the disk by way of the host counts on both links.
Cost: linear in the spans of the timeline.
"""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.machine import TierName
from elbowroom.timeline import Span, Timeline
from elbowroom.trace import Category, Trace


class MovedBytes(NamedTuple):
    """The copies of one kind of storage on one link in a step.

    Attributes:
        category: kind of the storages.
        upper: tier at the upper end of the link.
        lower: tier at its lower end.
        out_bytes: bytes that go down.
        back_bytes: bytes that come up.
    """

    category: Category
    upper: TierName
    lower: TierName
    out_bytes: int
    back_bytes: int


def moved_bytes(trace: Trace, line: Timeline) -> tuple[MovedBytes, ...]:
    """Return what a step moves, by link from the device downwards, and on each the most bytes first."""
    copies = [span for span in line.spans if span.storage is not None and span.kind in ("swap_out", "swap_back")]
    by_host = {span.storage for span in copies if span.lane in ("copy out", "copy back")}
    found: dict[tuple[Category, TierName, TierName], list[int]] = {}
    for span in copies:
        assert span.storage is not None
        sums = found.setdefault((trace.storages[span.storage].category, *_ends(span, by_host)), [0, 0])
        sums[span.kind == "swap_back"] += span.size_bytes
    made = (MovedBytes(*key, *sums) for key, sums in found.items())
    return tuple(sorted(made, key=lambda each: (each.upper, each.lower != "host", -sum(each[3:]), each.category)))


def _ends(span: Span, by_host: set[int | None]) -> tuple[TierName, TierName]:
    """Return the ends of the link that a copy takes."""
    if span.lane in ("copy out", "copy back"):
        return "device", "host"
    return ("host", "disk") if span.storage in by_host else ("device", "disk")
