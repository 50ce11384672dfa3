"""The search among all objects: it finds them by their type, and disturbs no other thread."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from elbowroom.torch_compat.live_objects import of_types

SEARCHES = 40


class Sought:
    """Something to find."""


class Under(Sought):
    """Its type is another."""


class Touchy:
    """Says that it is of another class, and minds being asked."""

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise AssertionError("a search woke it")


def test_objects_of_exactly_these_types_are_found_and_not_kept() -> None:
    # given two of them, and one that says it is of another class
    kept = [Sought(), Under(), Touchy()]
    before = [sys.getrefcount(each) for each in kept]
    # when
    found = of_types([Sought])
    # then
    assert [type(each) for each in found] == [Sought]
    found.clear()
    assert [sys.getrefcount(each) for each in kept] == before
    assert gc.isenabled()


@pytest.fixture
def restless() -> Iterator[None]:
    """Python changes threads as often as it can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("restless")
def test_a_thread_that_fills_a_tuple_meanwhile_goes_on() -> None:
    # given threads that build tuples whose length is not known beforehand
    ends, problems = threading.Event(), list[SystemError]()

    def rows() -> Iterator[list[int]]:
        yield from ([0] for _ in range(200))

    def builds() -> None:
        try:
            while not ends.is_set():
                assert len(tuple(map(list, rows()))) == 200
        except SystemError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=builds) for _ in range(3)]
    for each in threads:
        each.start()
    # when all objects are searched again and again
    for _ in range(SEARCHES):
        of_types([Sought])
    ends.set()
    for each in threads:
        each.join()
    # then no tuple counts as shared
    assert not problems
