"""Recomputes are carried out in a run: the same numbers bit for bit, the bytes that were simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import elbowroom as er
from elbowroom.run.room import Room
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    captured,
    needs,
    ordinary,
    train,
    train_within,
)
from tests.torch.words import Words

pytestmark = pytest.mark.long

STEPS = 8
"""Observed twice, calls recorded, proven twice, and three more."""


class Images(nn.Module):
    """Convolutions with batch norm, activations in place and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)) for _ in range(4)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = self.first(images)
        for block in self.blocks:
            found = found + block(found)
        return self.head(found.mean((2, 3)))


class Volumes(nn.Module):
    """A U-Net: what goes down is read again on the way up."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(1, 8), (8, 16), (16 + 8, 8)]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv3d(into, out, 3, padding=1), nn.InstanceNorm3d(out), nn.LeakyReLU())
            for into, out in sizes
        )
        self.head = nn.Conv3d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.stages[0](x)
        low = self.stages[1](F.max_pool3d(top, 2))
        return self.head(self.stages[2](torch.cat([top, F.interpolate(low, scale_factor=2)], 1)))


def images() -> Training:
    labels = torch.randint(0, 5, (8,))
    return ordinary(Images(), torch.randn(8, 3, 24, 24), loss=lambda scores: F.cross_entropy(scores, labels))


def words() -> Training:
    tokens = torch.randint(0, 50, (8, 32))
    return ordinary(
        Words(50, 48, 96, blocks=2, dropout=0.2),
        tokens,
        loss=lambda scores: F.cross_entropy(scores, tokens.roll(-1, 1).flatten()),
    )


def volumes() -> Training:
    volume = torch.randn(1, 1, 24, 24, 24)
    return ordinary(Volumes(), volume, loss=lambda out: F.l1_loss(out, volume))


SETUPS: dict[str, Setup] = {"images": images, "words": words, "volumes": volumes}


def recomputed(setup: Setup, share: float = 0.4, steps: int = STEPS, **options: Any) -> tuple[Outcome, Room]:
    """Train with recomputes alone within a budget between the least that these need and the keep-all peak."""
    least, peak = needs(setup, allow=("recompute",))
    return train_within(setup, steps, least + int(share * (peak - least)), allow=("recompute",), **options)


@pytest.mark.parametrize("name", SETUPS)
def test_a_training_with_recomputes_gives_the_same_bits(name: str) -> None:
    # given
    plain = train(SETUPS[name], STEPS)
    # when
    inside, room = recomputed(SETUPS[name])
    # then
    assert_equal(inside, plain)
    last = room.steps[-1]
    assert (last.mode, last.swapped_out_bytes, last.mismatches) == ("plan", 0, 0)
    assert room.plan is not None
    assert last.recomputed_bytes == sum(
        room.trace.storages[storage].size_bytes
        for recompute in room.plan.recomputes
        for storage in recompute.storages
        if room.trace is not None
    )
    assert last.recomputed_bytes > 0


def test_the_first_steps_under_a_plan_with_recomputes_swap_out_what_they_drop_to_compare_it() -> None:
    # when
    _, room = recomputed(images)
    # then
    moved = [(step.swapped_out_bytes > 0, step.recomputed_bytes > 0) for step in room.steps[-5:]]
    assert moved == [(True, True), (True, True), (False, True), (False, True), (False, True)]


@pytest.mark.parametrize("name", SETUPS)
def test_the_measured_peak_is_the_simulated_one_and_the_timeline_has_what_ran_again(name: str) -> None:
    # when
    _, room = recomputed(SETUPS[name], measure=True)
    line, simulated = room.measured, room.simulated
    # then within 1 % + 64 KiB: what samples take
    assert line is not None
    assert simulated is not None
    assert room.plan is not None
    assert abs(line.peak_allocated_bytes - simulated.peak_allocated_bytes) <= line.peak_allocated_bytes / 100 + 2**16
    again = [span.op for span in line.spans if span.kind == "recompute"]
    assert set(again) == {op for recompute in room.plan.recomputes for op in recompute.recipe}


def test_two_losses_in_one_step_are_each_rebuilt_for() -> None:
    # given two forward passes, each with a backward of its own, before the optimizer steps
    def setup() -> Training:
        model = Images()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        halves, labels = torch.randn(8, 3, 24, 24).split(4), torch.randint(0, 5, (4,))

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            losses = [F.cross_entropy(model(half), labels) for half in halves]
            losses[0].backward()
            losses[1].backward()
            optimizer.step()
            return torch.stack(losses).detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, STEPS)
    # when
    inside, room = recomputed(setup)
    # then
    assert_equal(inside, plain)
    assert room.steps[-1].recomputed_bytes > 0
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_plan_that_is_given_has_its_recomputes_carried_out(tmp_path: Path) -> None:
    # given a plan from a trace that another run of the training captured
    plain = train(images, STEPS)
    least, peak = needs(images, allow=("recompute",))
    trace, budget = captured(images), least + (peak - least) // 2
    made = er.plan(trace, er.Machine.here(device="cpu"), budget, "optimal", MIN_SIZE_BYTES, allow=("recompute",))
    made.save(tmp_path / "plan.json")
    # when
    inside, room = train_within(images, STEPS, plan=er.Plan.load(tmp_path / "plan.json"))
    # then
    assert_equal(inside, plain)
    dropped = [storage for each in made.recomputes for storage in each.storages]
    assert dropped
    assert room.steps[-1].recomputed_bytes == sum(trace.storages[storage].size_bytes for storage in dropped)
    assert room.steps[-1].swapped_out_bytes == 0
    # then `elbowroom run`, which ends with the summary, tells of it
    assert room.trace is not None
    rows = {row[0]: row[1:] for row in (line.split() for line in room.summary().splitlines()[2:4])}
    assert (rows["kept"][0], rows["recomputed"][0]) == (str(len(room.trace.saves) - len(dropped)), str(len(dropped)))


def test_means_that_no_run_can_carry_out_are_refused() -> None:
    # when
    with pytest.raises(er.UsageError) as error, er.within("1GiB", allow=("swap", "compress")):  # type: ignore[arg-type]
        pass
    # then
    allowed = "swap, recompute, state, gradient, parameter, algorithm"
    assert str(error.value) == f"allow: given 'compress'; allowed are {allowed}; take any of them"
