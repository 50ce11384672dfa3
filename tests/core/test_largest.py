"""largest: the largest value that fits, by few probes, and the value after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.answers.largest import Largest, Probe, largest, largest_of
from elbowroom.errors import CaptureError, TimeOver, UsageError
from elbowroom.watch import Watch


def search(
    need: Callable[[int], int], capacity: int, least: int = 1, most: int = 4096, multiple_of: int = 1, **others: Any
) -> Largest:
    return largest(need, capacity, least=least, most=most, multiple_of=multiple_of, **others)


def test_a_linear_need_takes_four_probes_and_the_last_two_are_the_answer_and_its_successor() -> None:
    # given 100 + 7 v <= 1000, so v <= 128.57
    found = search(lambda value: 100 + 7 * value, 1000)

    # then 1 and 2 give the line, 128 needs 100 + 896, 129 needs 100 + 903
    assert [probe.value for probe in found.probes] == [1, 2, 128, 129]
    assert found.fits == Probe(128, 996)
    assert found.too_large == Probe(129, 1003)


def test_a_range_that_fits_as_a_whole_has_no_successor() -> None:
    found = search(lambda value: value, 10**6, most=64)

    assert (found.fits, found.too_large) == (Probe(64, 64), None)


def test_where_not_even_the_smallest_fits_one_probe_says_so() -> None:
    found = search(lambda value: 500 + value, 400)

    assert (found.fits, found.too_large) == (None, Probe(1, 501))
    assert found.probes == (Probe(1, 501),)


def test_a_range_of_one_value_is_one_probe() -> None:
    found = search(lambda value: value, 10, least=8, most=8)

    assert (found.fits, found.too_large, len(found.probes)) == (Probe(8, 8), None, 1)


def test_multiples_are_what_is_looked_at() -> None:
    # given sides in multiples of 32 and a need of side ** 2: 23 * 32 = 736 needs 541,696; 24 * 32 = 768 needs 589,824
    found = search(lambda side: side * side, 560_000, least=64, most=2048, multiple_of=32)

    assert (found.fits, found.too_large) == (Probe(736, 541_696), Probe(768, 589_824))
    assert all(probe.value % 32 == 0 for probe in found.probes)
    assert len(found.probes) <= 7


def test_a_need_that_is_flat_at_first_and_rises_later_is_found_in_few_probes() -> None:
    # given a peak in the optimizer up to value 50, in the backward above: 1000 + 20 (v - 50) <= 5000, so v = 250
    found = search(lambda value: max(1000, 20 * value), 5000)

    assert (found.fits, found.too_large) == (Probe(250, 5000), Probe(251, 5020))
    assert len(found.probes) <= 8


def test_a_knob_that_changes_nothing_takes_three_probes() -> None:
    # given captures that are all the same: 1, 2 and the end of the range say so
    found = search(lambda _: 7, 10, same=lambda *_: True)

    assert (found.has_no_effect, found.same_from, found.fits) == (True, 1, Probe(4096, 7))
    assert [probe.value for probe in found.probes] == [1, 2, 4096]
    flat = search(lambda _: 7, 10)
    assert (flat.has_no_effect, flat.same_from) == (False, None)


def test_a_knob_that_stops_mattering_is_told_with_where_and_in_few_probes() -> None:
    # given 512 samples: a batch holds no more, whatever is asked for
    held = {value: min(value, 512) for value in range(1, 4_000_001)}
    found = search(held.__getitem__, 10**6, most=4_000_000, same=lambda one, other: held[one] == held[other])

    assert found.same_from is not None
    assert 512 <= found.same_from < 4_000_000
    assert (found.has_no_effect, found.fits, found.too_large) == (False, Probe(4_000_000, 512), None)
    assert len(found.probes) <= 9


def test_a_flat_part_that_ends_is_no_end_of_the_effect() -> None:
    # given a need that is the same up to 50: the end of the range differs, and so the search goes on
    found = search(lambda value: max(1000, 20 * value), 5000, same=lambda one, other: max(one, other) <= 50)

    assert (found.fits, found.same_from) == (Probe(250, 5000), None)


def test_a_value_with_which_the_training_fails_is_too_large_and_its_reason_is_kept() -> None:
    def need(value: int) -> int:
        if value > 300:
            raise CaptureError(f"{value} is more than there are")
        return value

    found = search(need, 10**6)

    assert found.fits is not None
    assert found.failed is not None
    assert found.too_large is None
    assert found.fits.value <= 300 < found.failed.value <= 303  # one part in a hundred apart
    assert len(found.probes) <= 9
    assert found.failed.problem == f"{found.failed.value} is more than there are"
    with pytest.raises(CaptureError, match="301 is more"):
        search(need, 10**6, least=301)


def test_a_huge_range_is_searched_to_a_hundredth_in_at_most_22_probes() -> None:
    # given needs that no curve follows: a step at a value that a list draws
    drawn = random.Random(0)
    for _ in range(200):
        last = int(4_000_000 ** drawn.random())
        found = search(lambda value, last=last: 1 if value <= last else 100, 10, most=4_000_000)

        assert found.fits is not None
        assert found.fits.value <= last <= found.fits.value * 1.01
        assert len(found.probes) <= 22


def test_values_of_a_list_are_halved() -> None:
    looked: list[int] = []

    def need(value: int) -> int:
        looked.append(value)
        return 100 + 7 * value

    found = largest_of((8, 16, 64, 256, 1024), need, 1000)

    assert (found.fits, found.too_large) == (Probe(64, 548), Probe(256, 1892))
    assert looked == [8, 64, 256]


@pytest.mark.parametrize("end", ["time", "interrupt"])
def test_a_search_that_ends_early_has_the_best_so_far(end: str) -> None:
    # given a clock that goes on by 10 s with each probe, and 35 s
    now = [0.0]
    watch = Watch(limit_s=35, clock=lambda: now[0])

    def need(value: int) -> int:
        watch.left_s()
        if end == "interrupt" and now[0] >= 30:
            raise KeyboardInterrupt
        now[0] += 10
        return value * value

    found = search(need, 10_000, watch=watch)

    assert found.fits is not None
    assert len(found.probes) == (3 if end == "interrupt" else 4)
    assert found.early.startswith("interrupted: " if end == "interrupt" else "stopped after 35 s: ")
    assert f"{found.fits.value} fits" in found.early


def test_a_search_that_ends_before_anything_is_known_says_so() -> None:
    watch = Watch(limit_s=1, clock=iter([0.0, 5.0]).__next__)

    with pytest.raises(TimeOver):
        search(lambda value: int(watch.left_s()) + value, 10, watch=watch)


def test_steps_of_the_allocator_do_not_mislead_it() -> None:
    # given whole segments of 20: 13 v + 5, rounded up to a multiple of 20
    found = search(lambda value: -(-(13 * value + 5) // 20) * 20, 9_990)

    # then 13 v + 5 <= 9,980 (the last multiple within): v <= 767.3; 768 needs 9,989, which is 10,000
    assert (found.fits, found.too_large) == (Probe(767, 9_980), Probe(768, 10_000))
    assert len(found.probes) <= 7


@given(st.integers(0, 2**32), st.integers(1, 3000))
def test_whatever_grows_is_searched_right_and_no_value_is_looked_at_twice(seed: int, most: int) -> None:
    # given a need that grows by random steps, some of them huge
    drawn = random.Random(seed)
    need = [100]
    for _ in range(most):
        need.append(need[-1] + drawn.choice([0, 0, 1, 5, 5, 5, 400]))
    capacity = drawn.randint(0, need[-1] + 10)

    found = search(need.__getitem__, capacity, most=most)

    last = sum(need[value] <= capacity for value in range(1, most + 1))
    fits = found.fits.value if found.fits else 0
    assert (found.too_large is None) == (last == most)
    if found.too_large:
        # the value after it, or one that is a hundredth away
        assert fits <= last < found.too_large.value <= max(fits + 1, fits * 101 // 100)
    else:
        assert fits == most
    values = [probe.value for probe in found.probes]
    assert len(values) == len(set(values)) <= 22


# values that are only too slow


def slowed(
    copies: int, limit: float, capacity: int = 1000
) -> tuple[Callable[[int], int], Callable[[int], float | None]]:
    """Return need and slowdown of a step of `value` compute with `copies` that it hides, in 10 bytes a value."""

    def slowdown(value: int) -> float | None:
        return max(1.0, copies / value) if 10 * value <= capacity else None

    def need(value: int) -> int:
        found = slowdown(value)
        return 10 * value if found is not None and found <= limit else max(10 * value, capacity + 1)

    return need, slowdown


def test_where_small_values_are_too_slow_the_least_that_is_fast_enough_is_found_too() -> None:
    # given copies of 24, hidden to a factor of 1.2 from 20 on; 1000 bytes hold 100
    need, slowdown = slowed(24, 1.2)

    found = search(need, 1000, slowdown=slowdown)

    assert (found.too_slow, found.fast_from) == (Probe(19, 1001), Probe(20, 200))
    assert (found.fits, found.too_large) == (Probe(100, 1000), Probe(101, 1010))
    values = [probe.value for probe in found.probes]
    assert values[:6] == [1, 2, 4, 8, 16, 32]
    assert len(values) == len(set(values)) <= 14


def test_a_value_that_is_fast_enough_between_a_slow_one_and_one_that_is_too_large_is_found() -> None:
    # given values from 20 to 24 that are fast enough and fit
    need, slowdown = slowed(24, 1.2, capacity=240)

    found = search(need, 240, slowdown=slowdown)

    assert found.fits == Probe(24, 240)
    assert (found.too_slow, found.fast_from) == (Probe(19, 241), Probe(20, 200))


def test_where_larger_values_are_no_faster_the_search_ends_after_two() -> None:
    # given a slowdown of 3 with any value
    found = search(lambda _: 1001, 1000, slowdown=lambda _: 3.0)

    assert (found.fits, found.fast_from) == (None, None)
    assert (found.too_slow, found.too_large) == (Probe(1, 1001), Probe(2, 1001))
    assert len(found.probes) == 2


def test_where_no_value_of_the_range_is_fast_enough_the_last_one_is_named() -> None:
    need, slowdown = slowed(24, 1.2)

    found = search(need, 1000, most=10, slowdown=slowdown)

    assert (found.fits, found.too_large, found.too_slow) == (None, None, Probe(10, 1001))


def test_values_of_a_list_that_are_too_slow_are_passed_too() -> None:
    need, slowdown = slowed(24, 1.2)

    found = largest_of((1, 4, 16, 64, 256), need, 1000, slowdown=slowdown)

    assert (found.too_slow, found.fast_from) == (Probe(16, 1001), Probe(64, 640))
    assert (found.fits, found.too_large) == (Probe(64, 640), Probe(256, 2560))


def test_a_larger_value_that_fails_ends_the_way_up() -> None:
    need, slowdown = slowed(24, 1.2)

    def failing(value: int) -> int:
        if value > 6:
            raise CaptureError(f"{value} is more than there are")
        return need(value)

    found = search(failing, 1000, slowdown=slowdown)

    assert (found.fits, found.too_slow) == (None, Probe(6, 1001))
    assert found.failed is not None
    assert found.failed.value == 7


@given(st.integers(1, 500), st.integers(10, 5000), st.integers(1, 300))
def test_slow_and_large_ends_are_found_wherever_they_are(copies: int, capacity: int, most: int) -> None:
    need, slowdown = slowed(copies, 1.2, capacity)

    found = search(need, capacity, most=most, slowdown=slowdown)

    fast = [value for value in range(1, most + 1) if need(value) <= capacity]
    values = [probe.value for probe in found.probes]
    assert len(values) == len(set(values))
    if found.fits:
        assert found.fits.value <= fast[-1] <= found.fits.value * 1.01
    if found.fits and fast[0] > 1:
        assert found.fast_from is not None
        assert fast[0] <= found.fast_from.value <= max(fast[0], fast[0] * 102 // 100)
    # values from one to its double hold the first that is fast enough, or it is between two that were looked at
    assert found.fits or not fast or fast[-1] < fast[0] * 102 // 100 + 1


@pytest.mark.parametrize(("least", "most", "multiple_of"), [(5, 4, 1), (-1, 4, 1), (1, 7, 8), (1, 4, 0)])
def test_a_range_without_a_value_is_refused(least: int, most: int, multiple_of: int) -> None:
    with pytest.raises(UsageError, match=rf"given {least}\.\.{most} in multiples of {multiple_of}; allowed is a range"):
        search(lambda value: value, 10, least, most, multiple_of)
