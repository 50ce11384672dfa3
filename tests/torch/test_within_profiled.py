"""Trainings that use torch's profiler themselves, of which only one can run: planned, and their profiles kept."""

from __future__ import annotations

import gc
import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function

import elbowroom as er
from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import (
    Outcome,
    Setup,
    Training,
    assert_equal,
    assert_swapped,
    mean_square,
    tight_budget,
    train,
    train_within,
)

LAYERS = 6
IN_USE = "torch's profiler is in use"
NO_RECOMPUTES = ("swap", "state", "gradient")
"""Means of plans here: ops of a recompute count in a profile, and whether there are any depends on rates."""


def net() -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(32, 32), nn.Tanh())])


def profiled(
    profile: Any, *, starts: int = 0, ends: int | None = None, ranges: bool = False, each_step: bool = False
) -> Setup:
    """A training that starts its profile before the step of a number, and ends it before that of another."""

    def setup() -> Training:
        model, data = net(), torch.randn(128, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(number: int) -> Tensor:
            if number == starts:
                profile.__enter__()
            if number == ends:
                profile.__exit__(None, None, None)
            with record_function("step") if ranges else nullcontext():
                optimizer.zero_grad()
                loss = mean_square(model(data))
                loss.backward()
                optimizer.step()
            if each_step:
                profile.step()
            return loss

        return Training(step, [model], [optimizer])

    return setup


def plain() -> Training:
    return profiled(nullcontext())()


def within_tight(setup: Setup, steps: int) -> tuple[Outcome, Room]:
    return train_within(setup, steps, tight_budget(plain), allow=NO_RECOMPUTES)


def counted(profile: Any, name: str) -> int:
    return sum(each.count for each in profile.key_averages() if each.key == name)


def test_a_training_that_profiles_itself_throughout_is_planned_and_two_steps_are_missing_in_its_profile() -> None:
    # given
    profile = torch.profiler.profile()
    # when
    with pytest.warns(RuntimeWarning, match=IN_USE) as told:
        outcome, room = within_tight(profiled(profile, ends=9), steps=10)
    # then
    assert_equal(outcome, train(plain, steps=10))
    assert_swapped(room, len(room.steps), first="frugal")
    assert len(told) == 1
    assert counted(profile, "aten::addmm") == (9 - 2) * LAYERS


def test_a_profile_of_a_few_steps_misses_none() -> None:
    # given
    profile = torch.profiler.profile()
    # when
    with pytest.warns(RuntimeWarning, match=IN_USE):
        outcome, room = within_tight(profiled(profile, ends=3), steps=8)
    # then
    assert_equal(outcome, train(plain, steps=8))
    assert_swapped(room, len(room.steps), first="frugal")
    assert counted(profile, "aten::addmm") == 3 * LAYERS


def test_a_profile_that_began_before_and_ends_after_the_run_goes_on_when_the_run_ends() -> None:
    # given
    budget = tight_budget(plain)
    with torch.autograd.profiler.profile() as profile:
        # when
        with pytest.warns(RuntimeWarning, match=IN_USE):
            train_within(plain, budget=budget, allow=NO_RECOMPUTES)
        net()(torch.randn(8, 32))
    # then the fourth and the fifth are missing, and what came after is there
    assert counted(profile, "aten::addmm") == (3 + 1) * LAYERS


def test_named_ranges_that_are_open_where_a_profile_is_put_aside_end_there() -> None:
    # given
    profile = torch.profiler.profile()
    # when
    with pytest.warns(RuntimeWarning, match=IN_USE):
        outcome, _ = within_tight(profiled(profile, ends=9, ranges=True), steps=10)
    # then those around the fourth and around the sixth step began before it was put aside, and before it went on
    assert_equal(outcome, train(plain, steps=10))
    assert counted(profile, "step") == 9 - 2


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_a_profile_with_a_schedule_sees_the_steps_that_it_asks_for(wait: int, tmp_path: Path) -> None:
    # given
    schedule, out = torch.profiler.schedule(wait=wait, warmup=1, active=2, repeat=1), tmp_path / "trace.json"
    profile = torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(str(out)))
    # when
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{IN_USE}")
        outcome, room = within_tight(profiled(profile, each_step=True, ends=9), steps=10)
    # then
    assert_equal(outcome, train(plain, steps=10))
    assert_swapped(room, len(room.steps))
    assert counted(profile, "aten::addmm") == 2 * LAYERS
    names = [event["name"] for event in json.loads(out.read_text())["traceEvents"]]
    assert names.count("aten::addmm") == 2 * LAYERS


def test_a_profiler_that_cannot_be_put_aside_leaves_nothing_to_plan_with_which_is_said_at_once() -> None:
    # given
    profile = torch.autograd.profiler.emit_itt() if torch.profiler.itt.is_available() else None
    if profile is None:
        pytest.skip("torch was built without ITT")
    # when
    with profile, pytest.warns(RuntimeWarning, match="nothing is planned") as told:
        outcome, room = train_within(plain, budget=2**40)
    # then
    assert_equal(outcome, train(plain))
    assert len(told) == 1
    assert "tests" in Path(told[0].filename).parts
    assert "5 steps, no plan yet" in room.summary()


def test_what_is_held_under_the_users_profiler_is_seen_where_storages_are_saved_and_read() -> None:
    # given eight layers, of which each output of 4 MiB is saved
    def trained(*, profiled: bool) -> tuple[int, int, int]:
        gc.collect()
        model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4096, 256)
        with er.within("1GiB", min_size=2**20) as room, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.profiler.profile() if profiled else nullcontext():
                for _ in range(3):
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
        return run_of(room).kinds.keep_all_bytes, run_of(room).held_bytes, live_ram_bytes()

    # when
    keep_all, _, live = trained(profiled=False)
    seen, held, _ = trained(profiled=True)
    # then the eight outputs are seen together, beside what else there was, and no more than keeping everything takes
    assert live + 32 * 2**20 - 2**20 <= seen <= keep_all + 2**20
    # and most of them were away when the last was made
    assert live <= held < seen - 16 * 2**20
