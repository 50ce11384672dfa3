"""A run at one moment, as a thread that shows it reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import elbowroom as er
from elbowroom.run.room import run_of
from elbowroom.run.run_now import RunNow

MIB = 2**20


def in_a_thread(look: Callable[[], RunNow]) -> RunNow:
    found: list[RunNow] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


class Looks(NamedTuple):
    """Looks at a run in the middle of its forwards, after its steps and before all of them; the run, and its losses."""

    inside: list[RunNow]
    after: list[RunNow]
    before: RunNow | None
    run: Any
    bits: list[str]


def train(budget: str, steps: int, looks: bool = True) -> Looks:
    """Look in the middle of each forward, after each step, and after the run: 8 layers save 1 MiB each."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, inside, after, bits = torch.randn(1024, 256), list[RunNow](), list[RunNow](), list[str]()
    with er.within(budget, min_size="512KiB") as room:
        run = run_of(room)
        before = in_a_thread(run.now) if looks else None
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            if looks:
                inside.append(in_a_thread(run.now))
            loss.backward()
            optimizer.step()
            if looks:
                after.append(in_a_thread(run.now))
            bits.append(loss.item().hex())
    return Looks(inside, after, before, run, bits)


def test_looks_change_neither_the_numbers_nor_what_moves() -> None:
    *_, plain, bits = train("14MiB", 6, looks=False)

    *_, looked_at, same = train("14MiB", 6)

    assert same == bits
    moved = [[(step.mode, step.swapped_out_bytes, step.mismatches) for step in run.steps] for run in (plain, looked_at)]
    assert moved[0] == moved[1]


def test_a_run_says_its_step_its_plan_and_its_memory() -> None:
    inside, _, before, run, _ = train("14MiB", 6)

    assert before is not None
    assert (before.steps, before.in_step_ns, before.last_step_ns, before.device_bytes) == (0, None, None, 0)
    assert before.plan.startswith("none yet: no step has begun")
    assert [now.steps for now in inside] == [0, 1, 2, 3, 4, 5]
    assert all(now.in_step_ns for now in inside)
    assert (inside[0].mode, inside[0].plan) == ("observe", "none yet: this step is observed, and what is large leaves")
    last = inside[-1]
    swaps = len(run.plan.swaps)
    assert (last.mode, last.budget_bytes) == ("plan", 14 * MIB)
    assert f"swapped to disk ({swaps})" in last.plan
    assert 0 < last.planned_peak_bytes <= 14 * MIB
    # what a recorded step held, as the budget counts it
    assert last.device_bytes == run.kinds.measured_peak_bytes
    assert set(last.lower_bytes) == {"disk"}
    assert last.resident_bytes > 14 * MIB
    assert last.recent[-1] is run.steps[4]


def test_steps_of_a_rest_are_counted_as_they_end() -> None:
    # given a job that fits, and rests after its first steps
    inside, after, _, run, _ = train("1GiB", 24)

    rests = [now for now in after if now.in_step_ns is None and now.mode == "keep"]
    assert rests
    assert all(now.last_step_ns for now in rests)
    counts = [now.steps for now in after]
    assert counts == sorted(counts)
    assert counts[-1] in (23, 24)  # the end of a step is acted on late, but for those of a rest
    assert (inside[-1].plan, len(run.steps)) == ("it fits, nothing is moved", 24)


def test_a_run_that_has_ended_says_what_it_was() -> None:
    *_, run, _ = train("14MiB", 3)

    now = run.now()

    assert (now.steps, now.in_step_ns) == (3, None)
    assert dict(now.lower_bytes) == {"disk": 0}
