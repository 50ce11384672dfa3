"""Every differentiable CPU op of PyTorch's own database, its saved storages swapped: gradients stay bit-equal.

Run by `make test-databases`. Each op takes its inputs from an op before it, so that what it saves may be swapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

from tests.databases.forced import Fed, is_learnt, slow_training, train_swapping_all
from tests.torch.helpers import SEED, Training

pytestmark = pytest.mark.filterwarnings("ignore")

LEFT_OUT = {
    "empty_permuted": "its result is whatever lies in memory",
}


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def ops() -> Iterator[Any]:
    """The ops with a float32 gradient on the CPU."""
    for op in op_db:
        differentiable = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
        yield pytest.param(op, id=_name(op), marks=() if differentiable else pytest.mark.skip("it has no gradient"))


def learnt_bytes(sample: Any) -> int:
    """Bytes of all tensors of a sample that has a gradient; else 0."""
    given, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [each for each in given if isinstance(each, Tensor)]
    return sum(each.untyped_storage().nbytes() for each in tensors if each.layout == torch.strided) * any(
        map(is_learnt, given)
    )


class Applied(Fed):
    """An op on a sample's tensors."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__(((sample.input, *sample.args), sample.kwargs))
        self.op = op

    def forward(self) -> Tensor:
        args, kwargs = self.taken()
        found, _ = tree_flatten(self.op.get_op()(*args, **kwargs))
        parts = [_summed(each) for each in found if isinstance(each, Tensor) and each.requires_grad]
        return torch.stack(parts).sum() if parts else torch.zeros((), requires_grad=True)


def _summed(out: Tensor) -> Tensor:
    dense = out.to_dense() if out.layout != torch.strided else out
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    weights = torch.linspace(0.5, 1.5, max(1, real.numel()))[: real.numel()].view(real.shape)
    return (real * weights).float().sum()


def trained(op: Any, sample: Any) -> Training:
    # A rate of 0 keeps the values inside the domain of the op; what is compared are the gradients.
    return slow_training(Applied(op, sample), rate=0.0)


@pytest.mark.parametrize("op", list(ops()))
def test_gradients_are_bit_equal_when_what_an_op_saves_is_swapped(op: Any) -> None:
    if _name(op) in LEFT_OUT:
        pytest.skip(LEFT_OUT[_name(op)])
    # given
    torch.manual_seed(SEED)
    sample = max(islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), 50), key=learnt_bytes)
    if not learnt_bytes(sample):
        pytest.skip("no sample has a tensor with a gradient")
    # when
    did = train_swapping_all(lambda: trained(op, sample))
    # then
    assert did.mismatches == 0
    assert bool(did.swapped_bytes) == bool(did.planned)
