"""One step that saves many small storages: what hooks and moves cost the host, and nothing else.

Times are those of the processor, not of the clock, and each is the least of so many steps, so that other work on the
computer counts less: it takes caches too. On the CPU they are of the training's thread: those that write and read the
disk have their own. On CUDA backward has a thread of its own, and there is no other, so they are of the process.
Storages that stay are as small as can be, so that computing them takes little; storages that move are larger, as the
memory of a GPU is reserved in blocks of 2 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import elbowroom
from elbowroom.engine.tiers.arenas import Arena, cuda_pinning
from elbowroom.run.room import Room

MIN_SIZE_BYTES = 1024
MOVED_BYTES = 1 << 16
PLENTY_BYTES = 64 << 30
WARM = 8
"""After this many steps in a row under the same plan, a room has its last one."""
PAUSE_S = 0.005
"""Seconds between the steps before: plans are made in a thread, whose core may be in use."""


_pinned: list[Arena] = []
"""Until the process ends: memory that is unmapped while it is page-locked stays so."""


class Chain(nn.Module):
    """So many times tanh, each of which saves what it returns."""

    def __init__(self, saves: int, elements: int) -> None:
        super().__init__()
        self.saves = saves
        self.weight = nn.Parameter(torch.zeros(elements))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight * x
        for _ in range(self.saves):
            y = torch.tanh(y)
        return y


def time_saves(*, device: str, saves: int, steps: int) -> dict[str, Any]:
    """Processor time of steps that run plain, within plenty, and within a budget that has about half of them moved."""
    clock = time.process_time_ns if device == "cuda" else time.thread_time_ns
    step = _training(device, saves, MIN_SIZE_BYTES // 4)
    kept = _compared(step, PLENTY_BYTES, steps, clock)
    plain_ns = kept["plain_step_ns"]
    step = _training(device, saves, MOVED_BYTES // 4)
    peak_bytes = _within(step, PLENTY_BYTES, 16, clock)["peak_bytes"]
    moved = _compared(step, peak_bytes - saves * MOVED_BYTES // 2, steps, clock)
    moved_ns = moved["checked_step_ns"] - moved["plain_step_ns"]
    return {
        "device": device,
        "torch": torch.__version__,
        "saves": saves,
        "steps": steps,
        "calls": time_calls(device),
        "kept": kept,
        "moved": moved,
        "us_per_checked_save": round((kept["checked_step_ns"] - plain_ns) / saves / 1e3, 2),
        "us_per_save": round((kept["mean_step_ns"] - plain_ns) / saves / 1e3, 2),
        "us_per_moved_storage": round(moved_ns / moved["swaps"] / 1e3, 1),
    }


def time_calls(device: str) -> dict[str, Any]:
    """Processor time of the calls of torch that a moved storage takes at the least, one after another.

    On CUDA: its stream's work so far is marked, the copy's stream waits for that, copies and is marked, and the first
    waits for that, both ways; between them is new memory, and a tensor on it that shares the saved one's version
    counter. `hooks` is what a pair of Python hooks takes that only hand tensors on.
    """
    x = torch.ones(MOVED_BYTES // 4, device=device)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "memory": (1, lambda: torch.empty(MOVED_BYTES, dtype=torch.uint8, device=device)),
        "tensor without bytes": (2, x.detach),
        "tensor on a storage": (1, _on_storage(x)),
    }
    if device == "cuda":
        calls |= _calls_of_streams(x)
    found = {name: (count, _each_us(call)) for name, (count, call) in calls.items()}
    hooks_us = _hooks_us(device)
    return {
        "each_us": {name: round(us, 2) for name, (_, us) in found.items()},
        "count": {name: count for name, (count, _) in found.items()},
        "hooks_us": round(hooks_us, 2),
        "floor_us": round(hooks_us + sum(count * us for count, us in found.values()), 1),
    }


def _calls_of_streams(x: torch.Tensor) -> dict[str, tuple[int, Callable[[], object]]]:
    host = Arena(MOVED_BYTES)
    cuda_pinning()[0](host.memory.data_ptr(), MOVED_BYTES)
    there = host.memory.view(x.dtype)
    _pinned.append(host)
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    return {
        "mark": (4, lambda: event.record(stream)),
        "wait": (4, lambda: stream.wait_event(event)),
        "copy out": (1, lambda: there.copy_(x, non_blocking=True)),
        "copy back": (1, lambda: x.copy_(there, non_blocking=True)),
    }


def _on_storage(x: torch.Tensor) -> Callable[[], object]:
    blank: Any = torch.empty(0, device=x.device)
    storage, shape = x.untyped_storage(), tuple(x.shape)
    return lambda: blank.set_(storage, 0, shape, (1,))


def _each_us(call: Callable[[], object]) -> float:
    """Least of several means."""
    means: list[float] = []
    for _ in range(9):
        start_ns = time.thread_time_ns()
        for _ in range(500):
            call()
        means.append((time.thread_time_ns() - start_ns) / 500 / 1e3)
    return min(means)


def _hooks_us(device: str) -> float:
    clock = time.process_time_ns if device == "cuda" else time.thread_time_ns
    step = _training(device, 200, MIN_SIZE_BYTES // 4)
    _timed(step, WARM, clock)
    plain_ns = min(_timed(step, 40, clock))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return (min(_timed(step, 40, clock)) - plain_ns) / 200 / 1e3


def _compared(step: Callable[[], None], budget_bytes: int, steps: int, clock: Callable[[], int]) -> dict[str, Any]:
    """Steps within, and as many plain ones before and after them."""
    _timed(step, WARM, clock)
    before = _timed(step, steps, clock)
    inside = _within(step, budget_bytes, steps, clock)
    return {"plain_step_ns": min(before + _timed(step, steps, clock)), **inside}


def _training(device: str, saves: int, elements: int) -> Callable[[], None]:
    model = Chain(saves, elements).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.ones(elements, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step


def _timed(step: Callable[[], None], count: int, clock: Callable[[], int]) -> list[int]:
    durations_ns = []
    for _ in range(count):
        start_ns = clock()
        step()
        durations_ns.append(clock() - start_ns)
    return durations_ns


def _warmed(room: Room, step: Callable[[], None]) -> int:
    """So many steps it took until the room had its last plan."""
    count, alike, plan = 0, 0, None
    while alike < WARM:
        step()
        time.sleep(PAUSE_S)
        count += 1
        same = room.plan is plan and room.steps and room.steps[-1].mode != "observe"
        alike, plan = alike + 1 if same else 0, room.plan
    return count


def _within(step: Callable[[], None], budget_bytes: int, steps: int, clock: Callable[[], int]) -> dict[str, Any]:
    with elbowroom.within(budget_bytes, min_size=MIN_SIZE_BYTES, allow=("swap",)) as room:
        warm = _warmed(room, step)
        taken_ns = _timed(step, steps, clock)
        peak_bytes = room.simulated.peak_reserved_bytes if room.simulated else 0
    rows = list(zip(taken_ns, room.steps[warm:], strict=True))
    if {row.mode for _, row in rows} & {"observe"} or any(row.mismatches for row in room.steps):
        raise RuntimeError(f"steps were observed late, or differed: {room.steps}")
    checked = [ns for ns, row in rows if row.checked]
    unchecked = [ns for ns, row in rows if not row.checked]
    least = [(len(each), min(each)) for each in (checked, unchecked) if each]
    return {
        "peak_bytes": peak_bytes,
        "budget_bytes": budget_bytes,
        "swaps": len(room.plan.swaps) if room.plan else 0,
        "checked": len(checked),
        "unchecked": len(unchecked),
        "checked_step_ns": min(checked),
        "unchecked_step_ns": min(unchecked) if unchecked else None,
        "mean_step_ns": round(sum(count * ns for count, ns in least) / steps),
    }
