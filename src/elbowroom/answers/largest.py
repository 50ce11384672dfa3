"""Largest: the largest value of a knob (batch size, resolution, sequence length) with which a training fits.

Computes: the last value of a range that fits, to `PRECISION` of it. The need must grow with the value. Each probe is a
capture of the training, so probes should be few. Need is nearly piecewise linear in a batch size, and nearly a parabola
in a resolution. So a curve is drawn through the three probes nearest to the capacity. The next probe is where it meets
the capacity. If such a curve misleads, the range is halved instead (its logarithm), and quadrupled while all fits.
A plan's step may be too slow with a small value and not with a larger one: more compute hides more copies, as
micro-batches hide those of optimizer states. So values are doubled while the slowdown falls, and the least value that
is fast enough is then found by bisection.
Optimal: for a linear need two probes, one at the answer and one at the value after it, which confirms it.
Ignores: a larger value could fit again, with a kernel that has less scratch memory, for example. If some values and the
end of the range have one capture, all values between are taken to have it.
Cost: at most log4(n) + 11 probes of n values; 4 to 6 on real models. Where small values are too slow 2 log2(n) more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple, final

from elbowroom.errors import CaptureError, UsageError
from elbowroom.watch import ENDS, Watch

PRECISION = 100
"""Divisor of a value that fits: the search ends if the next value that does not is at most that much larger."""
GROWTH = 64
"""Most that a probe is, as a multiple of the largest value known to fit: values far beyond may differ in kind."""

_POINTS = 3
_APART = 16  # points of a curve are apart by at least this part of their value
_PATIENCE = 4  # probes by a curve that may leave more than half of the range


class Probe(NamedTuple):
    """What one value needs.

    Attributes:
        value: value of the knob.
        needed_bytes: the least memory in which the training runs with it.
    """

    value: int
    needed_bytes: int


class Failed(NamedTuple):
    """A value with which the training could not be captured, and why.

    Attributes:
        value: value of the knob.
        problem: the error.
    """

    value: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value that fits.

    Attributes:
        capacity_bytes: the most that a value may need.
        fits: that value and what it needs; None if not even the smallest value fits.
        too_large: the smallest value known not to fit, and what it needs; None if none was found.
        probes: every value that was tried, in order.
        failed: the smallest value with which the training fails; None if none was found.
        same_from: a value from which on the knob changes nothing: the captures of it, of a larger value and of the end
            of the range are the same; None if they differ.
        early: what is known and what was not tried, if the search ended early; else "".
        too_slow: the largest value that is known to be too slow, where a larger one is fast enough or was looked for;
            None if no value was found that is only too slow.
        fast_from: the least value that is known to be fast enough, if smaller ones are too slow; else None.
    """

    capacity_bytes: int
    fits: Probe | None
    too_large: Probe | None
    probes: tuple[Probe, ...]
    failed: Failed | None = None
    same_from: int | None = None
    early: str = ""
    too_slow: Probe | None = None
    fast_from: Probe | None = None

    @property
    def value(self) -> int | None:
        """The largest value that fits; None if not even the smallest one does."""
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
    slowdown: Callable[[int], float | None] | None = None,
    watch: Watch | None = None,
) -> Largest:
    """Find the largest value that fits, by few probes.

    >>> largest(lambda value: 100 + 7 * value, 1000, least=1, most=4096).fits
    Probe(value=128, needed_bytes=996)

    Args:
        needed_bytes: returns what a value needs; called once per value. Raises CaptureError if the training fails with
            it, which counts as too large unless it is the smallest value.
        capacity_bytes: the most that a value may need.
        least: smallest value that is tried.
        most: largest value that is tried.
        multiple_of: only multiples of it are tried.
        same: returns whether two values that were tried had the same capture; None if no two have.
        slowdown: returns the slowdown within the capacity of a value that was tried, if time is all that it lacks; None
            if no value can be too slow.
        watch: reports progress, and ends the search early with the largest value so far.

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
    values = range(0, last * unit + 1, unit)
    return _found(values, needed_bytes, capacity_bytes, (same, slowdown), watch, first)


def largest_of(
    values: Sequence[int],
    needed_bytes: Callable[[int], int],
    capacity_bytes: int,
    *,
    same: Callable[[int, int], bool] | None = None,
    slowdown: Callable[[int], float | None] | None = None,
    watch: Watch | None = None,
) -> Largest:
    """Find the largest of some values in rising order that fits, by bisection.

    >>> largest_of((8, 16, 64, 256), lambda value: 100 + 7 * value, 1000).fits
    Probe(value=64, needed_bytes=548)
    """
    return _found(values, needed_bytes, capacity_bytes, (same, slowdown), watch, None)


def _found(
    values: Sequence[int],
    needed_bytes: Callable[[int], int],
    capacity_bytes: int,
    known: tuple[Callable[[int, int], bool] | None, Callable[[int], float | None] | None],
    watch: Watch | None,
    first: int | None,
) -> Largest:
    """Search among the places of `values`: by curves from place `first` on, or by bisection if `first` is None.

    `known` is what `largest` calls `same` and `slowdown`.
    """
    same, slowdown = known

    def is_same(one: int, other: int) -> bool:
        return same is not None and same(values[one], values[other])

    def slowdown_at(place: int) -> float | None:
        return slowdown and slowdown(values[place])

    search = _Search(lambda place: needed_bytes(values[place]), capacity_bytes, values, is_same, slowdown_at, first)
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
    """State of a search: places up to `fits` fit, those from `too_large` or `failed` on do not, the rest is unknown.

    Places up to `too_slow` do not fit either; `fast_from` is the first place that does, if there are such.
    """

    def __init__(
        self,
        needed: Callable[[int], int],
        capacity_bytes: int,
        values: Sequence[int],
        same: Callable[[int, int], bool],
        slowdown: Callable[[int], float | None],
        first: int | None,
    ) -> None:
        self._needed = needed
        self._capacity_bytes = capacity_bytes
        self._values = values
        self._same = same
        self._slowdown = slowdown
        self._by_curves = first is not None
        self._first = first or 0
        self.probes: list[Probe] = []
        self.fits: Probe | None = None
        self.too_large: Probe | None = None
        self.failed: Failed | None = None
        self.same_from: int | None = None
        self.too_slow: Probe | None = None
        self.fast_from: Probe | None = None

    def run(self) -> None:
        """Probe until the largest value that fits and the next known one are close, or no value changes anything."""
        self._probe(self._first)
        self._pass_slow()
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

    def _pass_slow(self) -> None:
        """Go on to larger places while those tried are only too slow; then close in on the first that is not."""
        while self.too_slow is not None:
            low, end = self.too_slow.value + 1, self.fast_from.value if self.fast_from else self._highest() + 1
            known = self.fast_from is not None or self._is_bounded
            if low >= end or (known and self._is_close(low - 1, end)):
                return
            self._probe((low + end - 1) // 2 if known else min(end - 1, max(low, 2 * self.too_slow.value)))

    def _is_only_slow(self, place: int) -> bool:
        """Whether a place that does not fit lacks time alone, and less of it than those below; or is below a fit."""
        if self.fits is not None:
            return place < self.fits.value
        slowdown = self._slowdown(place)
        before = None if self.too_slow is None else self._slowdown(self.too_slow.value)
        return slowdown is not None and (before is None or slowdown < before)

    def _free(self, needed_bytes: int) -> int:
        return self._capacity_bytes - needed_bytes

    def known(self) -> str:
        """Say what is known by now, as the end of a sentence."""
        assert self.fits is not None
        fits, high = self._values[self.fits.value], self._highest()
        if not self._is_bounded:
            return f"{fits} fits; nothing above it was tried"
        said = "fails" if self._fails_at(high + 1) else "does not fit"
        return f"{fits} fits, {self._values[high + 1]} {said}; between them was not tried"

    def outcome(self) -> Largest:
        """Return what was found, in values."""
        values = self._values
        return Largest(
            capacity_bytes=self._capacity_bytes,
            fits=self.fits and self._named(self.fits),
            too_large=self.too_large and self._named(self.too_large),
            probes=tuple(map(self._named, self.probes)),
            failed=self.failed and Failed(values[self.failed.value], self.failed.problem),
            too_slow=self.too_slow and self._named(self.too_slow),
            fast_from=self.fast_from and self._named(self.fast_from),
            same_from=None if self.same_from is None else values[self.same_from],
        )

    def _named(self, probe: Probe) -> Probe:
        return Probe(self._values[probe.value], probe.needed_bytes)

    def _ends_the_same(self, before: int) -> bool:
        """Return whether the last two probes and the end of the range have the same capture; probe that end for it."""
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
        """Return whether the training fails at a place; no curve of a need shows that."""
        return self.failed is not None and self.failed.value == place

    def _is_close(self, fits: int, bad: int) -> bool:
        return self._by_curves and (self._values[bad] - self._values[fits]) * PRECISION <= self._values[fits]

    def _sure(self, low: int, high: int) -> int:
        """Return a place that halves the range left, or quadruples the value that fits if no upper end is known."""
        if not self._by_curves:
            return (low + high) // 2
        return min(high, max(low, isqrt(low * high) if self._is_bounded else 4 * (low - 1)))

    @property
    def _is_bounded(self) -> bool:
        return self.too_large is not None or self.failed is not None

    def _highest(self) -> int:
        """Return the largest place that may still fit."""
        bad = [each.value for each in (self.too_large, self.failed) if each is not None]
        return min(bad) - 1 if bad else len(self._values) - 1

    def _likely(self, fits: int, low: int, high: int) -> int:
        """Return the last place at which the curve through the nearest probes is within the capacity.

        Beyond all probes the lower of curve and line counts: a probe that is far too large costs the most.
        """
        high = min(high, max(low, GROWTH * fits))
        if len(self._followed()) == 1:
            return min(high, max(low, 2 * fits))
        points = self._near()
        if _through(points, high) < _through(points, low):  # it bends down: no curve of a need
            return self._within(points[:2], low, high)
        likely = self._within(points, low, high)
        return likely if self._is_bounded else min(likely, self._within(points[:2], low, high))

    def _within(self, points: Sequence[Probe], low: int, high: int) -> int:
        """Return the last place from low to high at which the curve is within the capacity, found by bisection."""
        while low < high:
            middle = (low + high + 1) // 2
            if _through(points, middle) <= self._capacity_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def _followed(self) -> list[Probe]:
        """Return the probes that a curve of needs may follow: all but those that are too slow."""
        slow = -1 if self.too_slow is None else self.too_slow.value
        return [probe for probe in self.probes if probe.value > slow]

    def _near(self) -> list[Probe]:
        """Return the probes nearest to the capacity, none close to another, as the allocator's steps hide slopes."""
        found: list[Probe] = []
        near = sorted(self._followed(), key=lambda probe: abs(probe.needed_bytes - self._capacity_bytes))
        for probe in near:
            if all(abs(probe.value - other.value) * _APART >= other.value for other in found):
                found.append(probe)
        return found[:_POINTS] if len(found) > 1 else near[:_POINTS]

    def _probe(self, place: int) -> None:
        try:
            probe = Probe(place, self._needed(place))
        except CaptureError as problem:
            if (self.fits is None and self.too_slow is None) or (self.fits is not None and place < self.fits.value):
                raise
            self.failed = Failed(place, str(problem))
            return
        self.probes.append(probe)
        if probe.needed_bytes <= self._capacity_bytes:
            self.fits = max(self.fits or probe, probe)
            if self.too_slow is not None:
                self.fast_from = min(self.fast_from or probe, probe)
        elif self._is_only_slow(place):
            self.too_slow = probe
        else:
            self.too_large = probe


def _through(points: Sequence[Probe], value: int) -> float:
    """Evaluate the polynomial through some points at a value (Lagrange)."""
    total = 0.0
    for one in points:
        weight = 1.0
        for other in points:
            if other is not one:
                weight *= (value - other.value) / (one.value - other.value)
        total += weight * one.needed_bytes
    return total
