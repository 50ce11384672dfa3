"""Which means that were not allowed lower the least budget."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.errors import Infeasible
from elbowroom.planners import Means
from elbowroom.planners.budget.budgets import resolved
from elbowroom.planners.budget.remedies import restricted, with_accumulations
from elbowroom.planners.budget.run_budget import CourseRequest, course_within, remedied
from elbowroom.planners.request import PlanRequest
from elbowroom.run.room import Room, run_of
from elbowroom.units import parse_budget
from tests.fakecuda.within_models import MODELS

pytestmark = pytest.mark.long

GPU = er.Machine.of("a100-40gb")
MIB = 2**20


def refused(trace: er.Trace, asked: PlanRequest, budget: str = "1MiB") -> Infeasible:
    with pytest.raises(Infeasible) as found:
        course_within(request_of(restricted(trace, asked.allow), asked, budget))
    return remedied(found.value, request_of(trace, asked, budget))


def request_of(trace: er.Trace, asked: PlanRequest, budget: str | int) -> CourseRequest:
    within = resolved(GPU, parse_budget(budget))
    return CourseRequest(trace=trace, machine=GPU, budget=within, asked=asked)


def trace_of(model: str) -> er.Trace:
    torch.manual_seed(0)
    return er.capture(MODELS[model], machine=GPU, steps=3, in_parts=True)


def test_each_means_that_helps_is_named_with_a_budget_that_it_meets() -> None:
    # given a net of few samples, most of whose bytes are parameters, gradients and states
    trace = trace_of("wide layers with momentum")
    asked = PlanRequest(allow=("swap",))
    # when
    problem = refused(trace, asked)
    # then the states help, and with them the least is what is said
    named = re.search(r"with swap,state it is [^\n]* \((\d+) bytes\)", str(problem))
    assert named is not None, str(problem)
    least = int(named[1])
    assert least < problem.least_feasible_bytes - 64 * MIB
    with_states = PlanRequest(allow=("swap", "state"))
    shown = restricted(trace, with_states.allow)
    assert course_within(request_of(shown, with_states, least)).peak_bytes <= least


def test_gradients_help_where_the_last_layer_of_backward_holds_the_floor() -> None:
    trace = trace_of("many rows first")
    asked = PlanRequest(allow=("swap", "state"))
    assert "with swap,state,gradient it is " in str(refused(trace, asked))
    # and a run that moved none says it as well: where it could have is where backward makes each
    seen = restricted(trace, asked.allow)
    assert "with swap,state,gradient it is " in str(refused(seen, asked))
    named = {storage for part in with_accumulations(seen).parts for storage in part.storages}
    assert {s for s in named if trace.storages[s].category == "gradient" and trace.storages[s].size_bytes >= MIB}


def test_where_nothing_helps_nothing_is_said() -> None:
    asked = PlanRequest(allow=("swap", "recompute", "state", "gradient"))
    problem = refused(trace_of("residual net"), asked)
    assert "Other means" not in str(problem)


def nine_steps(budget: int | str, allow: tuple[Means, ...]) -> Room:
    """Of six layers that save 4 MiB each."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)])
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.zeros(4096, 256)
    with er.within(budget, min_size=MIB, allow=allow) as room:
        for _ in range(9):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return room


def refusal(budget: str, allow: tuple[Means, ...]) -> tuple[str, int]:
    """What it says and names, without the frames of the training, whose tensors would count."""
    try:
        nine_steps(budget, allow)
    except Infeasible as problem:
        return str(problem), problem.least_feasible_bytes
    raise AssertionError("it was not refused")


def test_a_training_that_is_refused_says_what_would_help() -> None:
    # given a training that may swap nothing that is saved
    said, least = refusal("1MiB", ("state",))
    # then swaps help, and with them it runs within what is named
    named = re.search(r"with swap,state it is [^\n]* \((\d+) bytes\)", said)
    assert named is not None, said
    assert int(named[1]) < least - 8 * MIB
    assert run_of(nine_steps(int(named[1]) + MIB, ("swap", "state"))).planned_peak_bytes <= int(named[1]) + MIB


def test_a_step_without_parts_says_nothing_of_states() -> None:
    trace = replace(trace_of("wide layers with momentum"), parts=())
    assert "state" not in str(refused(trace, PlanRequest(allow=("swap",)))).partition("Other means")[2]
