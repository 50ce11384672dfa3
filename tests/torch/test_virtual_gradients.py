"""Gradients in the trace of a GPU that is not there: named as by this computer, and moved by plans made of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor, nn

import elbowroom as er
from elbowroom.step.last_step import last_step
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    captured,
    finish,
    moved_as_planned,
    seeded,
    train,
)
from tests.torch.test_gradients_away import STATES, STEPS, heavy_at_the_end_of_backward, least_of, micro_steps

kept: list[Tensor] = []


def clipping(device: str) -> Training:
    return micro_steps(device, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def keeping_one(device: str) -> Training:
    """A hook of the user keeps the first gradient once it is written."""
    training = micro_steps(device)

    def keep(parameter: Tensor) -> None:
        if parameter.grad is not None:
            kept.append(parameter.grad.detach())

    next(training.modules[0].parameters()).register_post_accumulate_grad_hook(keep)
    return training


def accumulations(trace: er.Trace) -> list[list[int]]:
    """The bytes of the gradients of each accumulation of the last step."""
    return [[trace.storages[s].size_bytes for s in part.storages] for part in last_step(trace).accumulations]


def on(device: str, make: Callable[[str], Training]) -> Setup:
    return partial(make, device)


def planned() -> tuple[er.Trace, er.Plan]:
    """For so little that gradients have to move."""
    trace = captured(on("cuda", heavy_at_the_end_of_backward), in_parts=True, machine="a100-80gb")
    here, budget = er.Machine.here(device="cpu"), int(1.001 * least_of(trace))
    return trace, er.plan(trace, here, budget, "swap_states", MIN_SIZE_BYTES, allow=(*STATES, "gradient"))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(micro_steps, 3 * 8, id="eight layers, three times each"),
        pytest.param(clipping, 0, id="none that is asked for before the step"),
        pytest.param(keeping_one, 3 * 7, id="none that something refers to"),
        pytest.param(heavy_at_the_end_of_backward, 9, id="nine layers"),
    ],
)
def test_a_gpu_that_is_not_there_names_the_accumulations_that_this_computer_does(
    make: Callable[[str], Training], count: int
) -> None:
    # when
    virtual = captured(on("cuda", make), in_parts=True, machine="a100-80gb")
    here = captured(on("cpu", make), in_parts=True)
    kept.clear()
    # then
    assert accumulations(virtual) == accumulations(here) == [[96 * 96 * 4]] * count
    # then what is captured for an estimate has the same ops, and nothing in parts
    assert captured(on("cuda", make), machine="a100-80gb").parts == ()
    kept.clear()


def test_a_plan_with_gradients_for_a_gpu_that_is_not_there_is_carried_out_bit_equal() -> None:
    # given
    plain = train(heavy_at_the_end_of_backward, STEPS)
    trace, made = planned()

    # when
    with er.within(plan=made, trace=trace, min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(heavy_at_the_end_of_backward), STEPS)

    # then
    assert_equal(inside, plain)
    assert moved_as_planned(room) >= {"optimizer_state", "gradient"}
    assert room.plan is not None
    assert len(room.plan.swaps) == len(made.swaps)


def test_a_plan_with_gradients_is_refused_where_the_training_asks_for_them_before_it_steps() -> None:
    # given a training that clips, which that of the trace does not
    trace, made = planned()
    training = seeded(heavy_at_the_end_of_backward)
    weights = list(training.modules[1].parameters())

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(weights, 0.1)

    training.optimizers[0].register_step_pre_hook(clip)

    def run() -> None:
        with er.within(plan=made, trace=trace, min_size=MIN_SIZE_BYTES):
            finish(training, STEPS)

    # then
    with pytest.raises(er.InvalidPlan, match="not a saved storage, state or gradient that may move in this"):
        run()
