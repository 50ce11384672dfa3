"""What a run says of its energy: measured by the computer's counter alone, and simulated apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.hardware.energy_meters import EnergyCounter, EnergyMeter
from elbowroom.run import run_figures
from elbowroom.run.room import run_of


def train(budget: str, steps: int) -> tuple[Any, str]:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(4)]
    model, data = torch.nn.Sequential(*layers), torch.randn(1024, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with er.within(budget, min_size="256KiB") as room:
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
    return run_of(room), room.summary()


def counts(monkeypatch: pytest.MonkeyPatch, millijoules: int) -> None:
    """A processor whose counter rises by as much each time it is read, from 0 on."""
    read = [-millijoules]

    def each() -> int:
        read[0] += millijoules
        return read[0]

    made = EnergyMeter("RAPL", [EnergyCounter(each, 0)])
    monkeypatch.setattr(run_figures, "meter_of", lambda *_: made)


@pytest.mark.parametrize(("budget", "steps"), [("8MiB", 6), ("1GiB", 30)])
def test_a_run_measures_what_its_steps_took_after_the_first(
    monkeypatch: pytest.MonkeyPatch, budget: str, steps: int
) -> None:
    # given a counter that shows 58 J more when the summary reads it
    counts(monkeypatch, 58_000)

    run, summary = train(budget, steps)

    later = steps - 1
    line = f"  energy, measured by RAPL: {58 / later:.1f} J a step of the processor, over {later} steps"
    assert any(said.startswith(line) for said in summary.splitlines()), summary
    # the next look reads 58 J more
    found = run.measured_energy
    assert (found.source, found.millijoules, found.steps) == ("RAPL", 116_000, later)


def test_a_computer_without_a_counter_says_nothing_of_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_figures, "meter_of", lambda *_: None)

    run, summary = train("1GiB", 4)

    assert "energy" not in summary
    assert (run.measured_energy, run.simulated_energy) == (None, None)


def test_the_meter_is_read_from_time_to_time_and_not_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def read() -> int:
        reads.append(1)
        return len(reads)

    monkeypatch.setattr(run_figures, "meter_of", lambda *_: EnergyMeter("RAPL", [EnergyCounter(read, 0)]))
    run, _ = train("1GiB", 20)
    # once as the first step ended, and once for the summary
    assert len(reads) == 2

    # and at each step, once that is due
    monkeypatch.setattr(run_figures, "METER_NS", 0)
    before = len(reads)
    for _ in range(3):
        run._read_meter()
    assert len(reads) == before + 3
