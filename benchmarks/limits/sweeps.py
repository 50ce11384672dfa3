"""What follows from a sweep of limits: the least one, the failures above it, and which limits to look at. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

MIB = 2**20
POINTS = 12
FURTHER = 0.85
"""If the lowest limit is met, the next one is this share of it."""
CLOSE = 1.03
"""The search for the least limit ends where a failure is within this factor of it."""
TRAINED = "trained"
OVER = "over its budget"
Point = dict[str, Any]


def at_equal_ratios(low_bytes: float, high_bytes: int) -> list[int]:
    """Limits of a sweep from the lowest to the highest, whole MiB."""
    ratio = (high_bytes / low_bytes) ** (1 / (POINTS - 1))
    return sorted({round(low_bytes * ratio**n / MIB) * MIB for n in range(POINTS)})


def next_limit(points: Iterable[Point]) -> int | None:
    """The limit that tells most about the least one; None where it is known closely enough."""
    by_capacity = sorted(points, key=lambda point: point["limit_bytes"])
    met = [point["limit_bytes"] for point in by_capacity if point["outcome"] == TRAINED]
    if not met:
        return None
    failed = [point["limit_bytes"] for point in by_capacity if point["limit_bytes"] < met[0]]
    if not failed:
        return round(FURTHER * met[0] / MIB) * MIB
    if met[0] <= CLOSE * failed[-1] or met[0] - failed[-1] <= 2 * MIB:
        return None
    return round((met[0] * failed[-1]) ** 0.5 / MIB) * MIB


def least_of(points: Iterable[Point]) -> int | None:
    """The smallest limit that was met."""
    return min((point["limit_bytes"] for point in points if point["outcome"] == TRAINED), default=None)


def failures_above(points: list[Point]) -> list[Point]:
    """The points that did not end well although a smaller limit was met."""
    least = least_of(points)
    return [point for point in points if least is not None and point["limit_bytes"] > least and failed(point)]


def failed(point: Point) -> bool:
    return point["outcome"] != TRAINED


def out_of_memory(points: Iterable[Point]) -> list[Point]:
    """The points that ended in anything but a refusal: each is a promise that was not kept."""
    return [point for point in points if failed(point) and point["outcome"] != "Infeasible"]


def beyond(point: Point, budget_bytes: int) -> bool:
    """Whether a training held more than its budget and 1 % of it in any step, whatever it said itself."""
    return point["outcome"] == TRAINED and point["reserved"] > budget_bytes + budget_bytes // 100


def steps_lost(points: Iterable[Point]) -> Iterator[Point]:
    """The refusals that came after a step had been trained."""
    return (point for point in points if point["outcome"] == "Infeasible" and point["steps"])
