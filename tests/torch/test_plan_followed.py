"""Capture, plan, and follow the plan: in Python and on the command line, with the means that are the default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.plan import Swap

pytestmark = pytest.mark.long

SOURCES = Path(__file__).parents[2] / "src"
ROWS, WIDTH, DEPTH = 512, 256, 4


def setup(make: Callable[[], torch.Tensor] | None = None, device: str = "cpu") -> Callable[[], float]:
    """A training whose batch has no name where `make` makes it: m(torch.randn(..))."""
    torch.manual_seed(0)
    layers = [each for _ in range(DEPTH) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        if make is not None:
            loss = model(make()).square().mean()
        else:
            batch = torch.randn(ROWS, WIDTH, device=device)
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return 0.0 if device != "cpu" else loss.item()

    return step


def tight_budget(trace: er.Trace, machine: er.Machine) -> int:
    """Between the least and what keeping everything takes."""
    least = er.plan(trace, machine, "least").budget_bytes
    return (least + er.simulate(trace, machine).peak_allocated_bytes) // 2


BATCHES = {
    "with a name": None,
    "without a name": lambda: torch.randn(ROWS, WIDTH),
    "made by two ops": lambda: torch.randn(ROWS, WIDTH) * 2,
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_is_captured_and_planned_is_followed(
    batch: Callable[[], torch.Tensor] | None,
) -> None:
    # given the README's lines
    step = setup(batch)
    plain = [step() for _ in range(6)]
    trace, machine = er.capture(partial(setup, batch), steps=3), er.Machine.here(device="cpu")
    plan = er.plan(trace, machine, budget=tight_budget(trace, machine))
    # when
    step = setup(batch)
    with er.within(plan=plan) as room:
        inside = [step() for _ in range(6)]
    # then
    assert inside == plain
    assert room.plan is not None
    assert len(room.plan.swaps) + len(room.plan.recomputes) == len(plan.swaps) + len(plan.recomputes) > 0
    assert sum(figures.mismatches for figures in room.steps) == 0


SCRIPT = f"""
import torch

torch.manual_seed(0)
layers = [each for _ in range({DEPTH}) for each in (torch.nn.Linear({WIDTH}, {WIDTH}), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn({ROWS}, {WIDTH})).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    environment = {name: value for name, value in environment.items() if not name.startswith("ELBOWROOM_")}
    environment["ELBOWROOM_KEEPS_PLANS"] = "0"
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


def elbowroom(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "elbowroom", *words)


def test_the_default_plan_of_the_command_line_is_accepted_by_run(tmp_path: Path) -> None:
    # given
    (tmp_path / "train.py").write_text(SCRIPT)
    trace = er.capture(partial(setup, lambda: torch.randn(ROWS, WIDTH)), steps=3)
    trace.save(tmp_path / "trace.json")
    budget = tight_budget(trace, er.Machine.here(device="cpu"))
    plain = python(tmp_path, "train.py").stdout
    # when
    planned = elbowroom(tmp_path, "plan", "trace.json", "--budget", f"{budget}B", "-o", "plan.json")
    ran = [
        elbowroom(tmp_path, "run", "--plan", "plan.json", *more, "--json", "figures.json", "train.py")
        for more in ([], ["--trace", "trace.json"])
    ]
    # then
    assert planned.returncode == 0, planned.stderr
    assert [each.returncode for each in ran] == [0, 0], ran[0].stderr + ran[1].stderr
    assert len(plain.splitlines()) == 6
    assert [each.stdout for each in ran] == [plain, plain]
    assert json.loads((tmp_path / "figures.json").read_text())["swaps"] > 0


def test_recomputes_of_a_gpu_that_is_not_there_are_rebuilt_by_the_ops_of_the_run() -> None:
    # given a plan with recomputes alone, from a trace of another device
    make = BATCHES["with a name"]
    step = setup(make)
    plain = [step() for _ in range(8)]
    gpu = er.Machine.of("a100-40gb")
    trace = er.capture(partial(setup, make, "cuda"), machine=gpu, steps=3)
    made = er.plan(trace, gpu, "least", min_size="64KiB", allow=("recompute",))
    assert made.recomputes
    # when
    step = setup(make)
    with er.within("1GiB", plan=made, trace=trace, min_size="64KiB") as room:
        inside = [step() for _ in range(8)]
    # then
    assert inside == plain
    assert room.plan is not None
    dropped = {s for each in room.plan.recomputes for s in each.storages} | {s.storage for s in room.plan.swaps}
    assert len(dropped) == sum(len(each.storages) for each in made.recomputes)
    assert room.steps[-1].recomputed_bytes > 0


def test_what_the_calls_of_a_run_cannot_rebuild_is_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a plan with recomputes alone, and calls that can carry out none of them
    monkeypatch.setattr("elbowroom.run.recompute.planning.why_impossible", lambda *_: "of this test")
    step = setup()
    plain = [step() for _ in range(8)]
    trace, machine = er.capture(setup, steps=3), er.Machine.here(device="cpu")
    made = er.plan(trace, machine, "least", allow=("recompute",))
    dropped = sorted(storage for each in made.recomputes for storage in each.storages)
    # when
    step = setup()
    with er.within("1GiB", plan=made) as room:
        inside = [step() for _ in range(8)]
    # then
    assert inside == plain
    assert room.plan is not None
    assert room.plan.recomputes == ()
    assert sorted(swap.storage for swap in room.plan.swaps) == dropped != []
    assert all(isinstance(swap, Swap) and swap.tier == "disk" for swap in room.plan.swaps)
