"""Work in a forked child: its answer comes back, or there is no room."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from elbowroom.engine.ram_guard import RamGuard
from elbowroom.errors import Infeasible
from elbowroom.run import forked as forked_module
from elbowroom.run.forked import NoRoom, forked

GUARD = RamGuard([])


def test_an_answer_comes_back_with_shared_objects_as_they_are() -> None:
    shared = ["of the training"]
    own = os.getpid()

    pid, found, large = forked(lambda: (os.getpid(), shared, b"1" * 3_000_000), GUARD, (shared,))

    assert pid != own
    assert found is shared
    assert large == b"1" * 3_000_000


def test_an_error_of_ours_is_raised_with_its_figures() -> None:
    def refuse() -> NoReturn:
        raise Infeasible("too little", budget_bytes=3, least_feasible_bytes=5)

    with pytest.raises(Infeasible, match="too little") as found:
        forked(refuse, GUARD)

    assert (found.value.budget_bytes, found.value.least_feasible_bytes) == (3, 5)


def ended_by_the_kernel() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory() -> NoReturn:
    raise MemoryError


def children() -> list[str]:
    """Process ids of this thread's children; multiprocessing leaves one of its own in a process that used it."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


@pytest.mark.parametrize("work", [ended_by_the_kernel, out_of_memory, lambda: torch.ones(3)])
def test_a_child_that_dies_or_cannot_answer_has_no_room(work: Callable[[], object]) -> None:
    before = children()

    with pytest.raises(NoRoom):
        forked(work, GUARD)

    assert children() == before  # nothing is left behind


def test_a_child_that_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_module, "IDLE_S", 0.5)

    with pytest.raises(NoRoom):
        forked(lambda: signal.pause(), GUARD)
