"""Plans that swap parameters, made from captures of a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.errors import UsageError
from elbowroom.planners import check
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.optimal.state_choice import all_away
from elbowroom.planners.problem import MEANS, OF_STATES, Problem, as_plan
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # each least budget is searched for

MIB = 2**20
NO_SAVES = np.zeros(0, np.int64)
GPU = "rtx4090"


def deep(frozen: bool = False, mixed: bool = False) -> Callable[[], Callable[[], Any]]:
    """Sixteen layers of 4 MiB each, and a head; with `frozen` only that is trained, with `mixed` in bfloat16."""

    def setup() -> Callable[[], Any]:
        layers = [nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(16)]
        body, head = nn.Sequential(*layers).to("cuda").requires_grad_(not frozen), nn.Linear(1024, 8).to("cuda")
        optimizer = torch.optim.AdamW([p for p in (*body.parameters(), *head.parameters()) if p.requires_grad])
        batch = torch.randn(256, 1024, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
                loss = head(body(batch)).square().mean()
            loss.backward()
            optimizer.step()

        return step

    return setup


def planned(trace: er.Trace, budget_bytes: int, *means: Any) -> er.Plan:
    """A plan of swaps."""
    return er.plan(trace, er.Machine.of(GPU), budget_bytes, allow=("swap", *means), min_size=MIB, time_limit_s=1)


def least_of(trace: er.Trace, *means: Any) -> int:
    with pytest.raises(er.Infeasible) as refused:
        planned(trace, 1, *means)
    return refused.value.least_feasible_bytes


@pytest.mark.parametrize("frozen", [False, True])
def test_plans_may_swap_parameters(frozen: bool) -> None:
    # given: 64 MiB of weights
    trace = er.capture(deep(frozen), GPU, in_parts=True, parameters=True, min_size=MIB)
    # when
    least = least_of(trace, *OF_STATES)
    made = planned(trace, least, *OF_STATES)
    # then: it takes as much less as the weights do, but for what an op uses; frozen ones alone do not fit any more
    line = simulate(trace, er.Machine.of(GPU), made)
    assert line.peak_reserved_bytes <= least < least_of(trace, "state", "gradient") - 55 * MIB
    assert not frozen or least < 64 * MIB
    moved = {trace.storages[swap.storage].category for swap in made.swaps}
    assert "parameter" in moved
    # and a trained one leaves after forward, after backward and after the step; backward needs no frozen one here
    times = [swap.storage for swap in made.swaps if trace.storages[swap.storage].category == "parameter"]
    assert max(times.count(storage) for storage in times) == (1 if frozen else 3)


def test_uses_name_every_op_that_reads_or_writes_a_large_parameter() -> None:
    trace = er.capture(deep(), GPU, in_parts=True, parameters=True, min_size=MIB)
    first, end = trace.steps[-1]
    used = {part.first_op: set(part.storages) for part in trace.parts if part.kind == "use"}
    large = {n for n, each in enumerate(trace.storages) if each.category == "parameter" and each.size_bytes >= MIB}
    assert len(large) == 16
    for position in range(first, end):
        op = trace.ops[position]
        assert used.get(position, set()) == large.intersection((*op.reads, *op.writes))
    # without the argument, a plan may not move them
    plain = er.capture(deep(), GPU, in_parts=True, min_size=MIB)
    assert {part.kind for part in plain.parts} == {"optimizer", "accumulation"}


def test_uses_are_no_part_of_a_recording_made_here() -> None:
    with pytest.raises(UsageError, match="allowed is a GPU by name"):
        er.capture(deep(), parameters=True)


def test_no_recipe_reads_a_parameter_that_is_away() -> None:
    # given: weights that are cast for their products, so that recipes of the casts read them
    trace = er.capture(deep(mixed=True), GPU, in_parts=True, parameters=True, min_size=MIB)
    step, machine = last_step(trace), er.Machine.of(GPU)
    problem = Problem(
        step=step, machine=machine, tier="host", tier_bytes=2**40, budget_bytes=2**40, min_size_bytes=MIB, allow=MEANS
    )
    # when: all parameters are away between their uses
    asked = all_away(problem)
    recipes, left = ClosedRecipes(problem), ClosedRecipes(asked).droppable
    refused = [recipes.single(storage).recompute for storage in recipes.droppable if storage not in left]
    # then: a cast is not made again from one, which is what a check of the plan says too
    assert refused
    swaps = as_plan(asked, "states", moves_of(step, NO_SAVES, NO_SAVES)).swaps
    for recompute in refused:
        made = er.Plan(trace_id=trace.id, planner="both", budget_bytes=2**40, swaps=swaps, recomputes=(recompute,))
        with pytest.raises(er.InvalidPlan, match="which is away"):
            check(trace, made, machine)


def clipping(foreach: bool | None = None, scaled: bool = False) -> Callable[[], Callable[[], Any]]:
    """The same training, with its gradients clipped by their norm, and scaled where asked for."""

    def setup() -> Callable[[], Any]:
        body = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(16)], nn.Linear(1024, 8)).to("cuda")
        optimizer = torch.optim.AdamW(body.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        batch = torch.randn(256, 1024, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            scaler.scale(body(batch).square().mean()).backward()
            scaler.unscale_(optimizer)
            if foreach is not False or scaled:
                nn.utils.clip_grad_norm_(body.parameters(), 1.0, foreach=foreach)
            scaler.step(optimizer)
            scaler.update()

        return step

    return setup


@pytest.mark.parametrize("scaled", [False, True])
def test_clipped_gradients_leave_in_a_capture_as_in_a_run(scaled: bool) -> None:
    # given: 64 MiB of gradients, and a 16th of them on the device for each op of the clipping
    plain = er.capture(clipping(foreach=False), GPU, in_parts=True, parameters=True, min_size=MIB)
    trace = er.capture(clipping(scaled=scaled), GPU, in_parts=True, parameters=True, min_size=MIB)
    # when
    handed = [part for part in trace.parts if part.kind == "handed"]
    least, of_plain = least_of(trace, *OF_STATES), least_of(plain, *OF_STATES)
    # then
    assert len(handed) == 3 * (3 if scaled else 2)
    assert all(len(part.storages) == 16 for part in handed)  # the head is small
    assert least <= of_plain + 8 * MIB
    made = planned(trace, least, *OF_STATES)
    assert check(trace, made) is None
    whole = er.capture(clipping(scaled=scaled), GPU, in_parts=True, min_size=MIB)
    assert not any(part.kind in ("handed", "accumulation") for part in whole.parts if 0 not in part.storages)
    assert least_of(whole, "state", "gradient") > least + 48 * MIB
