"""Turns on a GPU: processes run their steps beside each other, but for those that are timed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

TURNS = "GPU_TURNS"
"""Environment variable with the file whose lock gives the turns; without it all is as if there were one process."""


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Hold the GPU for some steps.

    The lock is shared for steps that are not timed, so that a process that plans meanwhile is not waited for.

    Args:
        alone: no other process runs a step of its own meanwhile.
    """
    path = os.environ.get(TURNS)
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield  # closing the file gives the lock back
