"""largest: the largest value that fits, by few probes, and the value after it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import UsageError
from elbowroom.largest import Largest, Probe, largest


def search(
    need: Callable[[int], int], capacity: int, least: int = 1, most: int = 4096, multiple_of: int = 1
) -> Largest:
    return largest(need, capacity, least=least, most=most, multiple_of=multiple_of)


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


def test_a_knob_that_changes_nothing_is_told_apart() -> None:
    found = search(lambda _: 7, 10)

    assert found.is_flat
    assert found.fits == Probe(4096, 7)
    assert not search(lambda value: value, 10).is_flat


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

    fitting = [value for value in range(1, most + 1) if need[value] <= capacity]
    assert (found.fits.value if found.fits else 0) == (fitting[-1] if fitting else 0)
    assert (found.too_large is None) == (len(fitting) == most)
    if found.too_large:
        assert found.too_large.value == (fitting[-1] if fitting else 0) + 1
    values = [probe.value for probe in found.probes]
    assert len(values) == len(set(values)) <= 5 * most.bit_length() + 4


@pytest.mark.parametrize(("least", "most", "multiple_of"), [(5, 4, 1), (-1, 4, 1), (1, 7, 8), (1, 4, 0)])
def test_a_range_without_a_value_is_refused(least: int, most: int, multiple_of: int) -> None:
    with pytest.raises(UsageError, match=rf"given {least}\.\.{most} in multiples of {multiple_of}; allowed is a range"):
        search(lambda value: value, 10, least, most, multiple_of)
