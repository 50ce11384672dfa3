"""Every differentiable CPU op of PyTorch's own database, its saved storages swapped: gradients stay bit-equal.

Run by `make test-databases`. Each op takes its inputs from an op before it, so that what it saves may be swapped. A
step has samples of every dtype that the op has a gradient in.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten

from tests.databases.forced import FLOATS, Fed, is_learnt, train_swapping_all, written_training
from tests.torch.helpers import SEED, Training

pytestmark = pytest.mark.filterwarnings("ignore")

LEFT_OUT = {
    "as_strided.partial_views": "it reads beyond its argument, into a storage that a copy does not have",
    "empty_permuted": "its result is whatever lies in memory",
}
NO_KERNEL = {
    "sparse.mm.reduce": {torch.bfloat16, torch.float16},
}
"""The database names a gradient for these dtypes, and the backward has no kernel for them in this build."""

DRAWN = 50
"""Samples of a dtype that are looked at; of these"""
TAKEN = 4
"""the largest ones are taken that have at most"""
MOST_BYTES = 64 << 10
"""of learnt tensors, or the smallest where all have more."""


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtypes_of(op: Any) -> list[torch.dtype]:
    """In which an op has a gradient on the CPU."""
    found = FLOATS & set(op.supported_backward_dtypes("cpu")) - NO_KERNEL.get(_name(op), set())
    return sorted(found, key=str) if op.supports_autograd else []


def ops() -> Iterator[Any]:
    """All ops, those without a gradient skipped."""
    for op in op_db:
        yield pytest.param(op, id=_name(op), marks=() if dtypes_of(op) else pytest.mark.skip("it has no gradient"))


def learnt_bytes(sample: Any) -> int:
    """Bytes of all tensors of a sample that has a gradient; else 0."""
    given, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = [each for each in given if isinstance(each, Tensor)]
    return sum(each.untyped_storage().nbytes() for each in tensors if each.layout == torch.strided) * any(
        map(is_learnt, given)
    )


def samples_of(op: Any) -> list[Any]:
    """The largest samples of each dtype that have something to learn."""
    found: list[Any] = []
    for dtype in dtypes_of(op):
        torch.manual_seed(SEED)
        drawn = islice(op.sample_inputs("cpu", dtype, requires_grad=True), DRAWN)
        by_size = sorted(filter(learnt_bytes, drawn), key=learnt_bytes)
        found.extend([each for each in by_size if learnt_bytes(each) <= MOST_BYTES][-TAKEN:] or by_size[:1])
    return found


class Applied(Fed):
    """An op on a sample's tensors."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__(((sample.input, *sample.args), sample.kwargs))
        self.op = op
        self.defined = sample.output_process_fn_grad  # the part of the output that has one gradient

    def forward(self) -> Tensor:
        args, kwargs = self.taken()
        found, _ = tree_flatten(self.defined(self.op.get_op()(*args, **kwargs)))
        return sum((_summed(each) for each in found if is_learnt(each)), torch.zeros(()))


class Summed(nn.ModuleList):
    """An op on several samples."""

    def forward(self) -> Tensor:
        return sum((each() for each in self), torch.zeros((), requires_grad=True))


def _summed(out: Tensor) -> Tensor:
    dense = out.to_dense() if out.layout != torch.strided else out
    real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
    weights = torch.linspace(0.5, 1.5, max(1, real.numel()))[: real.numel()].view(real.shape)
    return (real * weights).float().sum()


def trained(op: Any, samples: list[Any]) -> Training:
    # A rate of 0 keeps the values inside the domain of the op; what is compared are the gradients.
    return written_training(Summed([Applied(op, each) for each in samples]), rate=0.0)


@pytest.mark.parametrize("op", list(ops()))
def test_gradients_are_bit_equal_when_what_an_op_saves_is_swapped(op: Any) -> None:
    if _name(op) in LEFT_OUT:
        pytest.skip(LEFT_OUT[_name(op)])
    # given
    samples = samples_of(op)
    if not samples:
        pytest.skip("no sample has a tensor with a gradient")
    # when
    did = train_swapping_all(lambda: trained(op, samples))
    # then
    assert did.mismatches == 0
    assert bool(did.swapped_bytes) == bool(did.planned)
