"""CTC loss and grouped products: what they allocate, as was seen on the rig."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine
from tests.torch.virtual_gpu import H100

A100 = replace(H100, name="a100", compute_capability=80, multiprocessors=108)
ROWS, BATCH, LABELS, LONGEST = 50, 4, 32, 10
TABLE = BATCH * ROWS * (2 * LONGEST + 1) * 4
"""Bytes of the forward table: a place for each label, and for each blank around them."""


def allocations(device: VirtualDevice, first: int) -> list[int]:
    return [size for _, _, size in device.ledger.events[first:] if size > 0]


@pytest.mark.parametrize("in_tensors", [False, True])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_a_ctc_loss_keeps_a_table_as_wide_as_its_longest_target(in_tensors: bool, zero_infinity: bool) -> None:
    with VirtualDevice(H100, steps=None) as device:
        # given
        scores = torch.randn(ROWS, BATCH, LABELS, device="cuda").log_softmax(-1).requires_grad_()
        targets = torch.ones(BATCH, LONGEST, dtype=torch.long, device="cuda")
        lengths: list[Any] = [(ROWS,) * BATCH, (LONGEST,) * BATCH]
        if in_tensors:
            lengths = [torch.full((BATCH,), size, device="cuda") for size in (ROWS, LONGEST)]
        first = len(device.ledger.events)
        # when
        loss = F.ctc_loss(scores, targets, *lengths, zero_infinity=zero_infinity)
        # then: three vectors of lengths and places, the table, and one loss for each sequence
        assert allocations(device, first)[:5] == [BATCH * 8] * 3 + [TABLE, BATCH * 4]
        # when
        first = len(device.ledger.events)
        loss.backward()
        # then: the same vectors, a second table, and the gradient
        numbers = allocations(device, first)
        where = numbers.index(TABLE)
        assert numbers[where - 3 : where + 2] == [BATCH * 8] * 3 + [TABLE, ROWS * BATCH * LABELS * 4]
        assert scores.grad is not None
        assert scores.grad.shape == scores.shape


def test_targets_in_a_row_have_tables_as_wide_as_their_lengths_say() -> None:
    with VirtualDevice(H100, steps=None):
        # given
        scores = torch.randn(ROWS, 2, LABELS, device="cuda").log_softmax(-1)
        targets = torch.ones(10, dtype=torch.long, device="cuda")
        # when
        made = torch.ops.aten._ctc_loss(scores, targets, [ROWS, ROWS], [3, 7])
        # then
        assert made[1].shape == (2, ROWS, 2 * 7 + 1)
        assert made[0].shape == (2,)


GROUPED = {
    # Rows of all groups after one another, by a matrix for each: 128 rows of 96 columns.
    "of a row of groups": ((128, 64), (4, 64, 96), (128, 96)),
    "of columns": ((64, 128), (128, 96), (4, 64, 96)),
    "of stacks": ((4, 32, 64), (4, 64, 96), (4, 32, 96)),
    "into columns": ((4, 32, 64), (64, 128), (32, 128)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_product_has_the_shape_of_its_groups(name: str, dtype: torch.dtype) -> None:
    # given
    first, second, shape = GROUPED[name]
    with VirtualDevice(H100, steps=None):
        ends = torch.tensor([32, 64, 96, 128], dtype=torch.int32).cuda()
        made = [torch.randn(each, device="cuda", dtype=dtype, requires_grad=True) for each in (first, second)]
        # when
        offsets = None if name == "of stacks" else ends
        product = torch._grouped_mm(made[0], made[1], offs=offsets)  # pyright: ignore[reportPrivateImportUsage]
        # then
        assert tuple(product.shape) == shape
        # when
        product.sum().backward()
        # then
        assert [each.grad is not None and each.grad.shape for each in made] == [each.shape for each in made]


@pytest.mark.parametrize(
    # 4 groups of 60 bytes of arguments, 512 bytes for each of 132 multiprocessors; before, one cuBLAS call a group
    ("machine", "scratch"),
    [(H100, [4 * 60, 512 * 132]), (A100, [])],
    ids=["h100", "a100"],
)
def test_a_grouped_product_in_bfloat16_is_one_kernel_where_the_gpu_has_it(machine: Machine, scratch: list[int]) -> None:
    with VirtualDevice(machine, steps=None) as device:
        # given
        weights = torch.randn(4, 64, 96, device="cuda", dtype=torch.bfloat16)
        rows = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
        ends = torch.tensor([32, 64, 96, 128], dtype=torch.int32).cuda()
        torch.mm(weights[0], weights[0].t())
        first = len(device.ledger.events)
        # when
        F.grouped_mm(rows, weights, offs=ends)
        # then
        assert allocations(device, first) == [128 * 96 * 2, *scratch]
