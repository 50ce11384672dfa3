"""Real model classes in small sizes: three steps at about half of what they need, and no number changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.torch.helpers import Training, assert_equal, needs, train, train_within

STEPS = 3
"""One observed, one under a first plan, one under the last."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model class.

    Attributes:
        name: of the class.
        model: makes it.
        loss: of one step, given the model.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any], Tensor]

    def training(self) -> Training:
        """SGD, so that what a step needs is mostly what autograd saves."""
        model = self.model().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(_: int) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = self.loss(model)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])


def assert_same_at_half(case: Case) -> None:
    """Losses, weights and gradients are those of plain training, at half of the keep-all peak.

    Where that is less than can be met, half way from the least budget to that peak.
    """
    plain = train(case.training, STEPS)
    assert_equal(train(case.training, STEPS), plain)
    least, peak = needs(case.training)
    # when
    inside, room = train_within(case.training, STEPS, budget=max(peak // 2, least + (peak - least) // 2))
    # then
    assert_equal(inside, plain)
    assert room.steps[-1].mode == "plan"
    assert room.steps[-1].swapped_out_bytes > 0
    assert sum(step.mismatches for step in room.steps) == 0
