"""Plans that swap parameters, made from captures of a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.errors import UsageError
from elbowroom.planners.problem import OF_STATES
from elbowroom.simulate.simulate import simulate

MIB = 2**20
GPU = "rtx4090"


def deep(frozen: bool = False) -> Callable[[], Callable[[], Any]]:
    """Sixteen layers of 4 MiB each, and a head; with `frozen` only that is trained."""

    def setup() -> Callable[[], Any]:
        layers = [nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(16)]
        body, head = nn.Sequential(*layers).to("cuda").requires_grad_(not frozen), nn.Linear(1024, 8).to("cuda")
        optimizer = torch.optim.AdamW([p for p in (*body.parameters(), *head.parameters()) if p.requires_grad])
        batch = torch.randn(256, 1024, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            head(body(batch)).square().mean().backward()
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
    with pytest.raises(UsageError, match="allowed is it with a GPU by name"):
        er.capture(deep(), parameters=True)
