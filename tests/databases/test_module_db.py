"""Every module of PyTorch's own database, its saved storages swapped: gradients stay bit-equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten

from tests.databases.forced import Fed, train_recomputing_all, train_swapping_all, written_training
from tests.torch.helpers import SEED, Training

pytestmark = pytest.mark.filterwarnings("ignore")


DTYPE = {"nn.FractionalMaxPool2d": torch.float64, "nn.FractionalMaxPool3d": torch.float64}
"""Of inputs and parameters where it is not float32; the database draws the regions of these in float64."""


NOT_MADE_AGAIN = {
    **dict.fromkeys(
        ("nn.CosineEmbeddingLoss", "nn.MarginRankingLoss", "nn.HingeEmbeddingLoss", "nn.GRUCell", "nn.GRU"),
        "an op that works in place: autograd copies what it needs of it before, which is no call",
    ),
    "nn.GaussianNLLLoss": "a recipe reads what Python keeps and autograd does not save",
    "nn.CTCLoss": "Python fills tensors with its lengths, which is no call",
}
"""Modules of which a storage has a recipe, and the calls that a run records cannot carry it out."""


def modules() -> list[Any]:
    return [pytest.param(info, id=info.name) for info in module_db]


class Applied(Fed):
    """A module on its inputs."""

    def __init__(self, module: nn.Module, given: tuple[Any, dict[str, Any]]) -> None:
        super().__init__(given)
        self.module = module

    def forward(self) -> Tensor:
        args, kwargs = self.taken()
        found, _ = tree_flatten(self.module(*args, **kwargs))
        parts = [each.float().square().sum() for each in found if isinstance(each, Tensor) and each.requires_grad]
        return torch.stack(parts).sum()


def first_input(info: Any) -> Any:
    """The first input of a module in training that has a forward pass and something to learn; None where none has."""
    torch.manual_seed(SEED)
    dtype = DTYPE.get(info.name, torch.float32)
    found = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True)
    return next((each for each in found if each.forward_input is not None), None)


def trained(info: Any, given: Any) -> Training:
    dtype = DTYPE.get(info.name, torch.float32)
    made = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    return written_training(Applied(made.to(dtype), (given.forward_input.args, given.forward_input.kwargs)), rate=1e-3)


def setup_of(info: Any) -> Callable[[], Training]:
    """A training of a module, or the test is skipped."""
    if torch.float32 not in info.supported_dtypes("cpu"):
        pytest.skip("it has no float32 gradient on the CPU")
    given = first_input(info)
    if given is None:
        pytest.skip("the database has no input for it")
    return lambda: trained(info, given)


@pytest.mark.parametrize("info", modules())
def test_gradients_are_bit_equal_when_what_a_module_saves_is_swapped(info: Any) -> None:
    # when
    did = train_swapping_all(setup_of(info))
    # then
    assert did.mismatches <= info.name.startswith("nn.Lazy")  # its class changes at the first call
    assert bool(did.swapped_bytes) == bool(did.planned)


@pytest.mark.parametrize("info", modules())
def test_gradients_are_bit_equal_when_what_a_module_saves_is_recomputed(
    info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # when
    did = train_recomputing_all(setup_of(info), monkeypatch)
    # then
    assert did.mismatches == 0
    assert did.recomputed_bytes == did.planned_bytes
    assert bool(did.impossible) == (info.name in NOT_MADE_AGAIN)
