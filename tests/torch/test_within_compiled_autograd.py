"""Compiled backward passes (compiled autograd): what was swapped comes back inside them, with the same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

import elbowroom as er
from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.storages import reachable_parameters
from elbowroom.run.room import run_of
from tests.torch.helpers import (
    Setup,
    Training,
    assert_equal,
    assert_swapped,
    mean_square,
    mlp,
    needs,
    train,
    train_within,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # its imports
]

LOSSES = 6 * 4
"""Bytes that six steps collect, as the tests keep each loss."""

Backward = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled() -> AbstractContextManager[Any]:
    from torch._dynamo.compiled_autograd import _enable

    return _enable(lambda graph: torch.compile(graph, backend="eager"))


def with_backward(way: Backward, between: int = 0) -> Setup:
    """A training, which has a tensor of so many floats for a while between forward and backward."""

    def setup() -> Training:
        model, batch = mlp(), torch.randn(96, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            torch.ones(between).sum()
            with way():
                loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    return setup


def test_a_backward_pass_that_is_compiled_gives_the_plain_numbers() -> None:
    # given
    plain = train(with_backward(nullcontext), 3)
    # when: the first step is observed, with every large saved storage away
    inside, room = train_within(with_backward(compiled), 3, budget=2**30)
    # then: four activations of 96 x 64 floats come back, read inside the compiled backward pass
    assert_equal(inside, plain)
    assert room.steps[0].swapped_back_bytes >= 4 * 96 * 64 * 4
    assert sum(step.mismatches for step in room.steps) == 0


def test_swaps_make_room_for_what_comes_before_a_compiled_backward_pass() -> None:
    # given the most bytes before it: half a million floats, where it holds some ten tensors of 96 x 64
    setup = with_backward(compiled, 1 << 19)
    plain = train(with_backward(nullcontext, 1 << 19), 6)

    def budget(_: Setup) -> int:
        before = kept_by_the_compiler()
        least, peak = needs(setup)
        assert peak - least == 3 * 96 * 64 * 4  # no tick comes after the fourth is saved
        return least + 3 * 96 * 64 * 4 // 2 + kept_by_the_compiler() - before

    # when
    inside, room = train_within(setup, 6, budget, measure=True)
    # then two of the three are away
    assert_equal(inside, plain)
    assert_swapped(room, 6)
    assert room.steps[-1].swapped_out_bytes == 2 * 96 * 64 * 4
    assert room.measured is not None
    assert room.simulated is not None
    # then the budget is held, and what is read back is counted until the pass is over
    assert abs(room.measured.peak_allocated_bytes - room.simulated.peak_allocated_bytes) <= LOSSES
    assert room.measured.peak_allocated_bytes <= run_of(room).budget_bytes + LOSSES


def kept_by_the_compiler() -> int:
    """Bytes that are alive once it has forgotten its code: it keeps weights of what hooks break up."""
    torch._dynamo.reset()
    gc.collect()
    for each in reachable_parameters():  # else plans let their gradients leave, and need no more
        each.grad = None
    return live_ram_bytes()


def test_a_budget_that_a_compiled_backward_pass_does_not_leave_room_for_is_refused_with_the_least() -> None:
    # given what is enough without it
    plain = train(with_backward(nullcontext), 6)
    least, peak = needs(with_backward(nullcontext))
    before = kept_by_the_compiler()
    # when
    with pytest.raises(er.Infeasible, match=r"(?s)backward pass .* is compiled .*compiled_autograd = False") as refused:
        train_within(with_backward(compiled), 6, (least + peak) // 2)
    least = refused.value.least_feasible_bytes
    del refused
    # then
    assert least > peak
    inside, room = train_within(with_backward(compiled), 6, least + kept_by_the_compiler() - before, measure=True)
    assert_equal(inside, plain)
    assert room.measured is not None
    assert room.measured.peak_allocated_bytes <= run_of(room).budget_bytes + LOSSES
