"""Trainings with the optimizers of PyTorch's own database, each with each of its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from torch import Tensor, nn
from torch.testing._internal.common_optimizers import optim_db

from tests.torch.helpers import Training, mean_square

Ways = Mapping[str, Mapping[str, bool]]


def settings(ways: Callable[[Any], Ways]) -> Iterator[Any]:
    """Every optimizer with each of its settings that are for the CPU, in each way: (its info, what it is given).

    Args:
        ways: by name, what an optimizer is given beside its settings.
    """
    infos: list[Any] = list(optim_db)
    for info in infos:
        for number, each in enumerate(info.optim_inputs_func(device="cpu")):
            for way, more in ways(info).items():
                words = "-".join(filter(None, (info.optim_cls.__name__, each.desc, str(number), way)))
                yield pytest.param(info, {**each.kwargs, **more}, id=words)


def trained(info: Any, given: dict[str, Any], model: nn.Module, inputs: Tensor) -> Training:
    """A training of a model with one of them; Muon takes its matrices alone."""
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
