"""The allocator's limit in a step: that of the simulated plan, raised to the budget if memory runs out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom import within
from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.run.allocator_limit import AllocatorLimit
from elbowroom.run.room import run_of

MIB = 2**20
PAGES = "expandable_segments:True,large_segment_size_mb:12"


class Memory:
    """Residence of a device that holds some bytes, and keeps the limits it is given."""

    def __init__(self, allocated_bytes: int) -> None:
        self.allocated = allocated_bytes
        self.limits: list[int | None] = []

    def allocated_bytes(self) -> int:
        return self.allocated

    def limit(self, size_bytes: int | None) -> bool:
        self.limits.append(size_bytes)
        return True


def begun(allocated_bytes: int, most_bytes: int) -> tuple[AllocatorLimit, Memory, list[int]]:
    """A limit in a step whose plan was simulated with 10 MiB at its beginning, below a limit of 100 MiB."""
    memory, told = Memory(allocated_bytes), list[int]()
    surprises: Any = SimpleNamespace(lies_there=told.append)
    course = SimpleNamespace(at_limit=True, peak_bytes=100 * MIB, begins_bytes=10 * MIB)
    known: Any = SimpleNamespace(proofs=0, course=course, machine=SimpleNamespace(allocator=PAGES))
    device: Any = memory
    limit = AllocatorLimit(device, surprises)
    limit.begin(known, most_bytes)
    return limit, memory, told


def test_the_limit_is_the_simulated_one_and_is_raised_once_to_the_budget_less_a_page() -> None:
    limit, memory, _ = begun(10 * MIB, 130 * MIB)
    assert memory.limits == [100 * MIB]
    assert limit.widen()
    assert memory.limits[1:] == [118 * MIB]
    assert not limit.widen()


def test_a_step_that_begins_with_more_has_as_much_more() -> None:
    _, memory, told = begun(25 * MIB, 130 * MIB)
    assert (memory.limits, told) == ([115 * MIB], [])


def test_a_step_that_begins_with_more_than_there_is_room_for_has_no_limit() -> None:
    limit, memory, told = begun(50 * MIB, 130 * MIB)
    assert (memory.limits, told) == ([], [40 * MIB])
    assert not limit.widen()


def test_nothing_is_raised_once_the_limit_is_lifted() -> None:
    limit, _, _ = begun(10 * MIB, 130 * MIB)
    limit.lift()
    assert not limit.widen()


def test_nothing_is_learnt_from_a_recorded_step_in_which_the_limit_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a step that is recorded, and has the first try of an op too
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)])
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4096, 256)
    with within(live_ram_bytes() + 20 * MIB, min_size=MIB) as room:
        run = run_of(room)
        monkeypatch.setattr(run._limit, "widen", lambda: True, raising=False)
        asks = model[3].register_forward_hook(lambda *_: run._make_room(MIB) and None)
        for number in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if not number:
                asks.remove()
    # then the next one is observed again
    assert [step.mode for step in room.steps] == ["observe", "observe", "plan"]
