"""Captures ahead: captures that run while an answer waits for another one, as many at once as cores and RAM allow.

The first capture runs alone. It shows how much RAM one takes.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from elbowroom.errors import CaptureError
from elbowroom.hardware.ram import free_bytes

if TYPE_CHECKING:
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

CaptureKey = tuple["Machine", int | None, int | None]
"""The GPU, the value of what is varied, and the least size of a state if optimizers' steps are in parts."""

MOST_AT_ONCE = 4
RAM_SHARE = 2
"""Captures at once may take one part in this many of the RAM that is free."""
KIBIBYTE = 1024


def at_once(cores: int, free: int, capture_bytes: int) -> int:
    """Return how many captures may run at once.

    Args:
        cores: cores that this process may use.
        free: bytes of RAM that are free.
        capture_bytes: most bytes that one capture held; 0 if none ran yet.

    >>> at_once(8, 32 * 2**30, 2 * 2**30), at_once(2, 32 * 2**30, 2 * 2**30), at_once(8, 8 * 2**30, 6 * 2**30)
    (4, 2, 1)
    """
    if not capture_bytes:
        return 1
    return max(1, min(cores, MOST_AT_ONCE, free // (RAM_SHARE * capture_bytes)))


@final
class CapturesAhead:
    """Captures by key, each made once. Leaving it ends those that still run.

    Args:
        capture: makes a capture, in any thread. It calls its second argument now and then, which raises to end it.
        most: returns how many may run at once; it is asked when the first capture has ended.
    """

    def __init__(
        self, capture: Callable[[CaptureKey, Callable[[], None]], Trace], most: Callable[[], int] | None = None
    ) -> None:
        self._capture = capture
        self._most = most or most_here
        self._made: dict[CaptureKey, Future[Trace]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._left = False

    def begin(self, key: CaptureKey) -> None:
        """Begin a capture that will be asked for, unless it is the first of all."""
        if self._pool is not None and key not in self._made:
            self._made[key] = self._pool.submit(self._capture, key, self._look)

    def get(self, key: CaptureKey) -> Trace:
        """Return a capture; wait for it where it still runs.

        Raises:
            CaptureError: it could not be captured.
            TimeOver: the time is over.
        """
        if self._pool is None and key not in self._made:
            trace = self._capture(key, self._look)
            self._made[key] = Future()
            self._made[key].set_result(trace)
            if (most := self._most()) > 1:
                self._pool = ThreadPoolExecutor(most, thread_name_prefix="elbowroom-capture")
            return trace
        self.begin(key)
        return self._made[key].result()

    def _look(self) -> None:
        if self._left:
            raise CaptureError("capture: given up, as nothing waits for it any more; ask again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, place: TracebackType | None
    ) -> None:
        self._left = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def most_here() -> int:
    """Return how many captures this computer has room for, by the largest child process so far."""
    capture_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIBIBYTE
    return at_once(len(os.sched_getaffinity(0)), free_bytes(), capture_bytes)
