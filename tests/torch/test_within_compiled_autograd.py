"""Compiled backward passes (compiled autograd): what was swapped comes back inside them, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

from tests.torch.helpers import Training, assert_equal, mean_square, mlp, train, train_within

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # its imports
]

Backward = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled() -> AbstractContextManager[Any]:
    from torch._dynamo.compiled_autograd import _enable

    return _enable(lambda graph: torch.compile(graph, backend="eager"))


def with_backward(way: Backward) -> Callable[[], Training]:
    def setup() -> Training:
        model, batch = mlp(), torch.randn(96, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
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
