"""Plans that swap optimizer states, made from a trace of `capture` and carried out by `within(plan=...)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.trace import Part
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    assert_follows,
    captured,
    finish,
    moved_as_planned,
    needs,
    seeded,
    train,
)
from tests.torch.test_states_away import MAKES, STEPS, layers

KINDS = ["Adam", "AdamW foreach", "SGD momentum"]


def parts_of_last_step(trace: er.Trace) -> list[tuple[int, int, tuple[int, ...]]]:
    """With positions counted from the begin of the step."""
    first, end = trace.steps[-1]
    inside = [part for part in trace.parts if first <= part.first_op and part.end_op <= end]
    return [(part.first_op - first, part.end_op - first, part.storages) for part in inside]


@pytest.mark.parametrize("name", KINDS)
def test_a_plan_with_states_made_from_a_captured_trace_is_carried_out_bit_equal(name: str, tmp_path: Path) -> None:
    def setup() -> Training:
        return layers(MAKES[name])

    # given a plan for less than saves alone can do, from a trace, through files
    plain = train(setup, STEPS)
    least, _ = needs(setup)
    captured(setup, in_parts=True).save(tmp_path / "trace.json")
    trace = er.Trace.load(tmp_path / "trace.json")
    here = er.Machine.here(device="cpu")
    made = er.plan(trace, here, int(0.9 * least), "swap_states", MIN_SIZE_BYTES, allow=("swap", "state"))
    made.save(tmp_path / "plan.json")

    # when
    with er.within(plan=er.Plan.load(tmp_path / "plan.json"), min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(setup), STEPS)

    # then
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_as_planned(room)
    assert_follows(room, made)


@pytest.mark.parametrize("name", KINDS)
def test_a_captured_step_is_the_one_that_a_run_observes(name: str) -> None:
    def setup() -> Training:
        return layers(MAKES[name])

    # when
    trace = captured(setup, in_parts=True)
    least, _ = needs(setup)
    with er.within(int(0.9 * least), min_size=MIN_SIZE_BYTES, allow=("swap", "state", "gradient")) as room:
        finish(seeded(setup), 4)

    # then the last steps of both have the same ops up to the end of the optimizer's, and the same parts of the same
    # storages
    assert room.trace is not None
    assert trace.parts
    ours, theirs = trace.steps[-1], room.trace.steps[-1]
    names = [op.name for op in room.trace.ops[theirs.first_op : theirs.end_op]]
    assert names == [op.name for op in trace.ops[ours.first_op : ours.end_op]][: len(names)]
    assert parts_of_last_step(trace) == parts_of_last_step(room.trace)


def test_parts_are_captured_on_a_gpu_that_is_not_there_where_that_is_asked_for() -> None:
    def setup() -> Callable[[], None]:
        model = nn.Sequential(nn.Linear(96, 96, bias=False), nn.Linear(96, 96, bias=False)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.randn(4, 96, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

        return step

    # when
    as_ever = er.capture(setup, "a100-80gb")
    in_parts = er.capture(setup, "a100-80gb", min_size=MIN_SIZE_BYTES, in_parts=True)

    # then an estimate sees the step as it is, and a plan each layer by itself with both of its states and its gradient
    assert as_ever.parts == ()
    of_gradients = [part for part in in_parts.parts if part.kind == "accumulation"]
    of_states = [part for part in in_parts.parts if part not in of_gradients]
    assert len(of_gradients) == len(of_states) == 6  # two layers, three steps
    for part in of_states:
        assert isinstance(part, Part)
        named = [in_parts.storages[storage] for storage in part.storages]
        # 96 x 96 floats of 4 bytes
        categories = ("optimizer_state", "optimizer_state", "gradient")
        assert [(each.category, each.size_bytes) for each in named] == [(each, 36864) for each in categories]
    assert of_states[-1].storages[:2] == of_states[-3].storages[:2]


@pytest.mark.parametrize("machine", ["here", "a100-80gb"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_closure_is_captured_as_forward_and_backward(machine: str, in_parts: bool) -> None:
    def setup(*, closes: bool) -> Callable[[], None]:
        device = "cpu" if machine == "here" else "cuda"
        model = nn.Sequential(nn.Linear(96, 96), nn.ReLU()).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.randn(4, 96, device=device)

        def forward_and_backward() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).sum()
            loss.backward()
            return loss

        def step() -> None:
            if closes:
                optimizer.step(forward_and_backward)  # pyright: ignore[reportArgumentType]
            else:
                forward_and_backward()
                optimizer.step()

        return step

    def ops(*, closes: bool) -> list[tuple[str, str]]:
        trace = er.capture(lambda: setup(closes=closes), machine, min_size=MIN_SIZE_BYTES, in_parts=in_parts)
        step = trace.steps[-1]
        return [(op.name, op.phase) for op in trace.ops[step.first_op : step.end_op]]

    # when, then
    assert ops(closes=True) == ops(closes=False)
