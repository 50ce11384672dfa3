"""Captures ahead: which ones run at once, what comes of an error, and how those end that nothing waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from elbowroom.cli.captures_ahead import CaptureKey, CapturesAhead, at_once
from elbowroom.errors import CaptureError
from elbowroom.trace import Trace
from tests.core.build import chain, machine

PATIENCE_S = 60
"""Seconds after which a test fails that waits for two threads."""


def key(value: int) -> CaptureKey:
    return machine(), value, None


def trace_of(value: int) -> Trace:
    return chain([4096 * value])


def test_the_first_capture_runs_alone_and_later_ones_at_once() -> None:
    # given captures that go on only when two of them run; the first one needs no other
    both = threading.Barrier(2)
    threads: list[str] = []

    def capture(wanted: CaptureKey, _look: Callable[[], None]) -> Trace:
        value = wanted[1] or 0
        threads.append(threading.current_thread().name)
        if value > 1:
            both.wait(PATIENCE_S)
        return trace_of(value)

    with CapturesAhead(capture, lambda: 2) as captures:
        captures.begin(key(2))  # nothing is known of what a capture takes
        assert captures.get(key(1)) == trace_of(1)
        assert threads == [threading.main_thread().name]

        captures.begin(key(2))
        assert captures.get(key(3)) == trace_of(3)
        assert captures.get(key(2)) == trace_of(2)
        assert captures.get(key(1)) is captures.get(key(1))

    assert len(threads) == 3


def test_without_room_for_two_nothing_begins_ahead() -> None:
    seen: list[int | None] = []

    def capture(wanted: CaptureKey, _look: Callable[[], None]) -> Trace:
        seen.append(wanted[1])
        return trace_of(wanted[1] or 0)

    with CapturesAhead(capture, lambda: 1) as captures:
        captures.get(key(1))
        captures.begin(key(2))
        assert seen == [1]
        captures.get(key(3))
        captures.get(key(3))

    assert seen == [1, 3]


def test_an_error_comes_where_the_capture_is_asked_for() -> None:
    def capture(wanted: CaptureKey, _look: Callable[[], None]) -> Trace:
        if wanted[1] == 2:
            raise CaptureError("with 2: the script failed")
        return trace_of(1)

    with CapturesAhead(capture, lambda: 2) as captures:
        captures.get(key(1))
        captures.begin(key(2))
        with pytest.raises(CaptureError, match="with 2"):
            captures.get(key(2))


def test_a_capture_that_nothing_waits_for_is_ended() -> None:
    # given a capture that looks now and then, and never ends by itself
    runs, ended = threading.Event(), threading.Event()

    def capture(wanted: CaptureKey, look: Callable[[], None]) -> Trace:
        if wanted[1] == 1:
            return trace_of(1)
        runs.set()
        while True:
            try:
                look()
            except CaptureError:
                ended.set()
                raise
            ended.wait(0.001)

    with CapturesAhead(capture, lambda: 2) as captures:
        captures.get(key(1))
        captures.begin(key(2))
        assert runs.wait(PATIENCE_S)

    assert ended.is_set()


@pytest.mark.parametrize(
    ("cores", "free_gib", "capture_gib", "expected"),
    [(16, 64, 1, 4), (2, 64, 1, 2), (2, 3, 1, 1), (2, 4, 1, 2), (8, 64, 0, 1), (1, 64, 1, 1)],
)
def test_captures_at_once_take_half_of_the_free_ram_at_most(
    cores: int, free_gib: int, capture_gib: int, expected: int
) -> None:
    assert at_once(cores, free_gib * 2**30, capture_gib * 2**30) == expected
