"""largest: the largest value of a knob (batch size, resolution, sequence length) with which a training fits.

Computes: the last value of a range that fits, given that what a training needs grows with the value. Each probe is a
capture of the training, so there should be few: need is close to piecewise linear in a batch size and to a parabola in
a resolution, so the next probe is where the curve through the three probes nearest to the capacity meets it. Where
such a curve misleads, the range is halved instead.
Optimal: for a linear need two probes, one at the answer and one at the value after it, which confirms it.
Ignores: that a larger value could fit again (another kernel with less scratch memory, for example).
Cost: at most about 3 log2(n) probes of n values; 4 to 6 on real models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from elbowroom.errors import UsageError

GROWTH = 64
"""A probe is at most so many times the largest value known to fit: what lies far beyond may differ in kind."""

_POINTS = 3
_APART = 16  # points of a curve are apart by at least this part of their value
_PATIENCE = 2  # probes in a row that may leave more than half of the range


class Probe(NamedTuple):
    """What one value needs."""

    value: int
    needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value that fits.

    Attributes:
        capacity_bytes: what a value may need.
        fits: it and what it needs; None where not even the smallest value fits.
        too_large: the value after it and what that needs; None where the whole range fits.
        probes: every value that was looked at, in order.
    """

    capacity_bytes: int
    fits: Probe | None
    too_large: Probe | None
    probes: tuple[Probe, ...]

    @property
    def is_flat(self) -> bool:
        """Whether no two values differ in what they need: the knob is probably not connected to anything."""
        needs = {probe.needed_bytes for probe in self.probes}
        return len(self.probes) > 1 and len(needs) == 1


def largest(
    needed_bytes: Callable[[int], int], capacity_bytes: int, *, least: int, most: int, multiple_of: int = 1
) -> Largest:
    """Find the largest value that fits, by few probes.

    >>> largest(lambda value: 100 + 7 * value, 1000, least=1, most=4096).fits
    Probe(value=128, needed_bytes=996)

    Args:
        needed_bytes: what a value needs; called once per value.
        capacity_bytes: what it may need.
        least: smallest value that is looked at.
        most: largest value that is looked at.
        multiple_of: only multiples of it are looked at.

    Raises:
        UsageError: no value lies in the range.
    """
    unit = max(1, multiple_of)
    first, last = -(-least // unit), most // unit
    if multiple_of < 1 or least < 0 or first > last:
        raise UsageError(
            f"largest: given {least}..{most} in multiples of {multiple_of}; allowed is a range from 0 or more with at "
            "least one multiple in it; widen the range"
        )
    search = _Search(lambda value: needed_bytes(value * unit), capacity_bytes, first, last)
    search.run()
    return Largest(
        capacity_bytes=capacity_bytes,
        fits=_in_units(search.fits, unit),
        too_large=_in_units(search.too_large, unit),
        probes=tuple(Probe(value * unit, size_bytes) for value, size_bytes in search.probes),
    )


def _in_units(probe: Probe | None, unit: int) -> Probe | None:
    return None if probe is None else Probe(probe.value * unit, probe.needed_bytes)


@final
class _Search:
    """All values up to `fits` fit, all from `too_large` on do not; what lies between is looked for."""

    def __init__(self, needed: Callable[[int], int], capacity_bytes: int, first: int, last: int) -> None:
        self._needed = needed
        self._capacity_bytes = capacity_bytes
        self._first, self._last = first, last
        self.probes: list[Probe] = []
        self.fits: Probe | None = None
        self.too_large: Probe | None = None

    def run(self) -> None:
        """Probe until the value after the largest that fits is known not to."""
        self._probe(self._first)
        slow = 0
        while self.fits is not None and (low := self.fits.value + 1) <= (high := self._highest()):
            fits, known = self.fits.value, self.too_large is not None
            self._probe(self._likely(fits, low, high) if slow < _PATIENCE else self._sure(low, high))
            if known:
                progress = self._highest() - self.fits.value <= (high - fits) // 2
            else:
                progress = self.too_large is not None or self.fits.value >= 2 * fits
            slow = 0 if progress else slow + 1

    def _sure(self, low: int, high: int) -> int:
        """A value that halves what is left, or doubles what fits while nothing that does not is known."""
        return (low + high) // 2 if self.too_large else min(high, 2 * low)

    def _highest(self) -> int:
        """The largest value of which it is not known that it does not fit."""
        return self.too_large.value - 1 if self.too_large else self._last

    def _likely(self, fits: int, low: int, high: int) -> int:
        """The last value at which the curve through the nearest probes is within the capacity.

        Beyond all probes the lower one of curve and line counts: a probe that is far too large costs the most.
        """
        high = min(high, max(low, GROWTH * fits))
        if len(self.probes) == 1:
            return min(high, max(low, 2 * fits))
        points = self._near()
        if _through(points, high) < _through(points, low):  # it bends down: no curve of a need
            return self._within(points[:2], low, high)
        likely = self._within(points, low, high)
        return likely if self.too_large else min(likely, self._within(points[:2], low, high))

    def _within(self, points: Sequence[Probe], low: int, high: int) -> int:
        """The last value from low to high at which the curve is within the capacity, found by halving."""
        while low < high:
            middle = (low + high + 1) // 2
            if _through(points, middle) <= self._capacity_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def _near(self) -> list[Probe]:
        """The probes nearest to the capacity, none close to another: the allocator's steps hide the slope there."""
        found: list[Probe] = []
        near = sorted(self.probes, key=lambda probe: abs(probe.needed_bytes - self._capacity_bytes))
        for probe in near:
            if all(abs(probe.value - other.value) * _APART >= other.value for other in found):
                found.append(probe)
        return found[:_POINTS] if len(found) > 1 else near[:_POINTS]

    def _probe(self, value: int) -> None:
        probe = Probe(value, self._needed(value))
        self.probes.append(probe)
        if probe.needed_bytes <= self._capacity_bytes:
            self.fits = probe
        else:
            self.too_large = probe


def _through(points: Sequence[Probe], value: int) -> float:
    """The polynomial through some points, at a value (Lagrange)."""
    total = 0.0
    for one in points:
        weight = 1.0
        for other in points:
            if other is not one:
                weight *= (value - other.value) / (one.value - other.value)
        total += weight * one.needed_bytes
    return total
