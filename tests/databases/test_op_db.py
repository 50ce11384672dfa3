"""Every differentiable CPU op of PyTorch's own database, its saved storages swapped: gradients stay bit-equal.

Run by `make test-databases`. Each op takes its inputs from an op before it, so that what it saves may be swapped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

from tests.databases.forced import WRITES_END_S, train_swapping_all
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
        map(_is_learnt, given)
    )


class Applied(nn.Module):
    """An op on a sample's tensors, each of them made by an op of this module."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        self.given = (sample.input, sample.args, sample.kwargs)
        leaves, _ = tree_flatten(self.given)
        self.learnt = nn.ParameterList([nn.Parameter(each.detach().clone()) for each in leaves if _is_learnt(each)])

    def forward(self) -> Tensor:
        learnt = iter(self.learnt)
        taken = tree_map(lambda each: next(learnt).clone() if _is_learnt(each) else each, self.given)
        first, args, kwargs = taken
        found, _ = tree_flatten(self.op.get_op()(first, *args, **kwargs))
        parts = [_summed(each) for each in found if isinstance(each, Tensor) and each.requires_grad]
        return torch.stack(parts).sum() if parts else torch.zeros((), requires_grad=True)


def _is_learnt(each: object) -> bool:
    return isinstance(each, Tensor) and each.requires_grad


def _summed(out: Tensor) -> Tensor:
    dense = out.to_dense() if out.layout != torch.strided else out
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    weights = torch.linspace(0.5, 1.5, max(1, real.numel()))[: real.numel()].view(real.shape)
    return (real * weights).float().sum()


def trained(op: Any, sample: Any) -> Training:
    model = Applied(op, sample)
    # A rate of 0 keeps the values inside the domain of the op; what is compared are the gradients.
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=0.0)

    def step(_: int) -> Tensor:
        torch.manual_seed(SEED)
        optimizer.zero_grad(set_to_none=True)
        loss = model()
        time.sleep(WRITES_END_S)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model], [optimizer])


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
