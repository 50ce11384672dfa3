"""largest: the largest value of a knob (batch size, resolution, sequence length) with which a training fits.

Computes: the last value of a range that fits, given that what a training needs grows with the value, to `PRECISION` of
it. Each probe is a capture of the training, so there should be few: need is close to piecewise linear in a batch size
and to a parabola in a resolution, so the next probe is where the curve through the three probes nearest to the capacity
meets it. Where such a curve misleads, the range is halved instead (its logarithm), and quadrupled while all fits.
Optimal: for a linear need two probes, one at the answer and one at the value after it, which confirms it.
Ignores: that a larger value could fit again (another kernel with less scratch memory, for example); that two values
whose captures are the same, and the end of the range too, could have others between them.
Cost: at most log4(n) + 11 probes of n values; 4 to 6 on real models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple, final

from elbowroom.errors import CaptureError, UsageError
from elbowroom.watch import ENDS, Watch

PRECISION = 100
"""The search ends where what fits and what does not are apart by one part in so many."""
GROWTH = 64
"""A probe is at most so many times the largest value known to fit: what lies far beyond may differ in kind."""

_POINTS = 3
_APART = 16  # points of a curve are apart by at least this part of their value
_PATIENCE = 4  # probes where a curve said that may leave more than half of the range


class Probe(NamedTuple):
    """What one value needs.

    Attributes:
        value: of what is varied.
        needed_bytes: the least memory in which the training runs with it.
    """

    value: int
    needed_bytes: int


class Failed(NamedTuple):
    """A value with which the training could not be captured, and why.

    Attributes:
        value: of what is varied.
        problem: the error.
    """

    value: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value that fits.

    Attributes:
        capacity_bytes: what a value may need.
        fits: it and what it needs; None where not even the smallest value fits.
        too_large: the smallest value that is known not to fit, and what that needs; None where none was found.
        probes: every value that was looked at, in order.
        failed: the smallest value with which the training fails; None where it did not.
        same_from: a value from which on none changes anything: the captures of it, of a larger one and of the end of
            the range are the same; None where they differ.
        early: what is known and was not tried, where the search ended early; "" where it did not.
    """

    capacity_bytes: int
    fits: Probe | None
    too_large: Probe | None
    probes: tuple[Probe, ...]
    failed: Failed | None = None
    same_from: int | None = None
    early: str = ""

    @property
    def value(self) -> int | None:
        """The largest value that fits; None where not even the smallest one does."""
        return None if self.fits is None else self.fits.value

    @property
    def has_no_effect(self) -> bool:
        """Whether the captures of all values are the same: nothing in the training uses the knob."""
        return self.same_from is not None and self.same_from == min(probe.value for probe in self.probes)


def largest(
    needed_bytes: Callable[[int], int],
    capacity_bytes: int,
    *,
    least: int,
    most: int,
    multiple_of: int = 1,
    same: Callable[[int, int], bool] | None = None,
    watch: Watch | None = None,
) -> Largest:
    """Find the largest value that fits, by few probes.

    >>> largest(lambda value: 100 + 7 * value, 1000, least=1, most=4096).fits
    Probe(value=128, needed_bytes=996)

    Args:
        needed_bytes: what a value needs; called once per value. Raises CaptureError where the training fails with it,
            which counts as too large unless it is the smallest value.
        capacity_bytes: what it may need.
        least: smallest value that is looked at.
        most: largest value that is looked at.
        multiple_of: only multiples of it are looked at.
        same: whether two values that were looked at had the same capture; None: none have.
        watch: looks on, and ends the search early with the largest value so far.

    Raises:
        UsageError: no value lies in the range.
        CaptureError: the training fails with the smallest value.
        TimeOver: the time of `watch` is over, and nothing is known.
    """
    unit = max(1, multiple_of)
    first, last = -(-least // unit), most // unit
    if multiple_of < 1 or least < 0 or first > last:
        raise UsageError(
            f"largest: given {least}..{most} in multiples of {multiple_of}; allowed is a range from 0 or more with at "
            "least one multiple in it; widen the range"
        )
    return _found(range(0, last * unit + 1, unit), needed_bytes, capacity_bytes, same, watch, first)


def largest_of(
    values: Sequence[int],
    needed_bytes: Callable[[int], int],
    capacity_bytes: int,
    *,
    same: Callable[[int, int], bool] | None = None,
    watch: Watch | None = None,
) -> Largest:
    """As `largest`, among some values in rising order, by halving them.

    >>> largest_of((8, 16, 64, 256), lambda value: 100 + 7 * value, 1000).fits
    Probe(value=64, needed_bytes=548)
    """
    return _found(values, needed_bytes, capacity_bytes, same, watch, None)


def _found(
    values: Sequence[int],
    needed_bytes: Callable[[int], int],
    capacity_bytes: int,
    same: Callable[[int, int], bool] | None,
    watch: Watch | None,
    first: int | None,
) -> Largest:
    """Search among the places of values, from the first one on, and by curves, or by halving where that is None."""

    def is_same(one: int, other: int) -> bool:
        return same is not None and same(values[one], values[other])

    search = _Search(lambda place: needed_bytes(values[place]), capacity_bytes, values, is_same, first)
    try:
        search.run()
    except ENDS as problem:
        if watch is None or search.fits is None:
            raise
        watch.ends_early(problem, search.known())
    found = search.outcome()
    return replace(found, early=watch.early) if watch else found


@final
class _Search:
    """All places up to `fits` fit, all from `too_large` or `failed` on do not; what lies between is looked for."""

    def __init__(
        self,
        needed: Callable[[int], int],
        capacity_bytes: int,
        values: Sequence[int],
        same: Callable[[int, int], bool],
        first: int | None,
    ) -> None:
        self._needed = needed
        self._capacity_bytes = capacity_bytes
        self._values = values
        self._same = same
        self._by_curves = first is not None
        self._first = first or 0
        self.probes: list[Probe] = []
        self.fits: Probe | None = None
        self.too_large: Probe | None = None
        self.failed: Failed | None = None
        self.same_from: int | None = None

    def run(self) -> None:
        """Probe until what fits and what does not are close, or no value changes anything any more."""
        self._probe(self._first)
        misses = 0 if self._by_curves else _PATIENCE
        while self.fits is not None and (low := self.fits.value + 1) <= (high := self._highest()):
            (fits, needed), known = self.fits, self._is_bounded
            if known and self._is_close(fits, high + 1):
                return
            by_curve = misses < _PATIENCE and not self._fails_at(high + 1)
            self._probe(self._likely(fits, low, high) if by_curve else self._sure(low, high))
            if not known and self._ends_the_same(fits):
                return
            if known:
                misses += self._highest() - self.fits.value > (high - fits) // 2
            elif not self._is_bounded and self.fits.value < 4 * fits:
                misses += self._free(self.fits.needed_bytes) > self._free(needed) // 2

    def _free(self, needed_bytes: int) -> int:
        return self._capacity_bytes - needed_bytes

    def known(self) -> str:
        """What is known by now, as the end of a sentence."""
        assert self.fits is not None
        fits, high = self._values[self.fits.value], self._highest()
        if not self._is_bounded:
            return f"{fits} fits; nothing above it was tried"
        said = "fails" if self._fails_at(high + 1) else "does not fit"
        return f"{fits} fits, {self._values[high + 1]} {said}; between them was not tried"

    def outcome(self) -> Largest:
        """What was found, in values."""
        values = self._values
        return Largest(
            capacity_bytes=self._capacity_bytes,
            fits=self.fits and self._named(self.fits),
            too_large=self.too_large and self._named(self.too_large),
            probes=tuple(map(self._named, self.probes)),
            failed=self.failed and Failed(values[self.failed.value], self.failed.problem),
            same_from=None if self.same_from is None else values[self.same_from],
        )

    def _named(self, probe: Probe) -> Probe:
        return Probe(self._values[probe.value], probe.needed_bytes)

    def _ends_the_same(self, before: int) -> bool:
        """Whether the last probe, the one before it and the end of the range do not differ; which is probed for it."""
        last = len(self._values) - 1
        if self.fits is None or self.fits.value == before or not self._same(before, self.fits.value):
            return False
        if self.fits.value < last:
            self._probe(last)
        if self.fits.value < last or not self._same(before, last):
            return False
        self.same_from = before
        return True

    def _fails_at(self, place: int) -> bool:
        """Whether the training fails there, which no curve of a need knows of."""
        return self.failed is not None and self.failed.value == place

    def _is_close(self, fits: int, bad: int) -> bool:
        return self._by_curves and (self._values[bad] - self._values[fits]) * PRECISION <= self._values[fits]

    def _sure(self, low: int, high: int) -> int:
        """A place that halves what is left, or quadruples what fits while nothing that does not is known."""
        if not self._by_curves:
            return (low + high) // 2
        return min(high, max(low, isqrt(low * high) if self._is_bounded else 4 * (low - 1)))

    @property
    def _is_bounded(self) -> bool:
        return self.too_large is not None or self.failed is not None

    def _highest(self) -> int:
        """The largest place of which it is not known that it does not fit."""
        bad = [each.value for each in (self.too_large, self.failed) if each is not None]
        return min(bad) - 1 if bad else len(self._values) - 1

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
        return likely if self._is_bounded else min(likely, self._within(points[:2], low, high))

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

    def _probe(self, place: int) -> None:
        try:
            probe = Probe(place, self._needed(place))
        except CaptureError as problem:
            if self.fits is None:
                raise
            self.failed = Failed(place, str(problem))
            return
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
