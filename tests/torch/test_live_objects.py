"""The search among all objects: it finds them by their type, and disturbs no other thread."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from elbowroom.torch_compat.live_objects import of_types

FILLS = """
import sys, threading
import torch  # many objects
from elbowroom.torch_compat.live_objects import of_types

sys.setswitchinterval(1e-6)  # threads change as often as they can
if "hooked" in sys.argv:
    sys.addaudithook(lambda *_: None)
ends, problems = threading.Event(), []

def rows():
    yield from ([0] for _ in range(200))

def builds():
    try:
        while not ends.is_set():
            assert len(tuple(map(list, rows()))) == 200  # a tuple whose length is not known beforehand
    except SystemError as problem:
        problems.append(problem)

threads = [threading.Thread(target=builds) for _ in range(3)]
for each in threads:
    each.start()
for _ in range(40):
    of_types([threading.Event])
ends.set()
for each in threads:
    each.join()
print(problems)
"""
"""What a process runs that searches all objects while its threads build tuples."""


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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("hooks", [(), ("hooked",)], ids=["without hooks", "with an audit hook"])
def test_a_thread_that_fills_a_tuple_meanwhile_goes_on(hooks: tuple[str, ...]) -> None:
    # given a process whose threads build tuples, and perhaps a hook, which stays as long as its process
    searches = [sys.executable, "-c", FILLS, *hooks]
    # when it searches all objects again and again
    ended = subprocess.run(searches, capture_output=True, text=True, check=True)
    # then no tuple counted as shared
    assert ended.stdout == "[]\n", ended
