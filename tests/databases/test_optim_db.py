"""Every optimizer of PyTorch's own database with each of its settings: weights stay bit-equal in a tight budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_optimizers import optim_db

from tests.torch.helpers import Training, assert_equal, mean_square, mlp, train, train_within

pytestmark = pytest.mark.filterwarnings("ignore")


def settings() -> list[Any]:
    """Every optimizer with each of its settings that are for the CPU."""
    infos: list[Any] = list(optim_db)
    return [
        pytest.param(info, dict(each.kwargs), id=f"{info.optim_cls.__name__}-{each.desc}-{number}")
        for info in infos
        for number, each in enumerate(info.optim_inputs_func(device="cpu"))
    ]


def trained(info: Any, given: dict[str, Any]) -> Training:
    model = mlp()
    # What LBFGS keeps of earlier steps is more than what few rows save.
    inputs = torch.randn(1024 if info.step_requires_closure else 96, 64)
    parameters = [each for each in model.parameters() if each.dim() == 2] if info.optim_cls.__name__ == "Muon" else None
    optimizer = info.optim_cls(parameters or model.parameters(), **given)

    def step(_: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = mean_square(model(inputs))
            loss.backward()
            return loss

        if info.step_requires_closure:
            return optimizer.step(closure).detach()
        loss = closure().detach()
        optimizer.step()
        return loss

    return Training(step, [nn.ModuleList([model])], [optimizer])


@pytest.mark.parametrize(("info", "given"), settings())
def test_weights_and_states_are_bit_equal_when_what_a_step_saves_is_swapped(info: Any, given: dict[str, Any]) -> None:
    if info.optim_cls.__name__ == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_numerics_models.py has it with an embedding")

    def setup() -> Training:
        return trained(info, given)

    # when
    plain = train(setup)
    inside, room = train_within(setup)
    # then
    assert_equal(inside, plain)
    # LBFGS calls its closure as often as it likes: its steps differ, and the last may be of a kind that fits.
    steps = room.steps if info.step_requires_closure else room.steps[-1:]
    assert any(step.swapped_out_bytes > 0 for step in steps)
