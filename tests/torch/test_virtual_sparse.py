"""Sparse tensors on the virtual device: places and values, and the products that graphs are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

ROWS, PLACES = 100, 600


def graph() -> torch.Tensor:
    """A sparse matrix of the host: places 2 x 600 x 8 bytes, values 600 x 4."""
    places = torch.arange(PLACES) * 16
    return torch.sparse_coo_tensor(
        torch.stack([places // ROWS, places % ROWS]), torch.ones(PLACES), (ROWS, ROWS), check_invariants=True
    ).coalesce()


def test_a_sparse_tensor_that_is_moved_to_the_device_takes_its_places_and_values() -> None:
    with VirtualDevice(H100, steps=None) as device:
        before = device.ledger.allocated_bytes
        moved = graph().to("cuda")
        held = device.ledger.allocated_bytes - before
        assert moved.layout is torch.sparse_coo
        assert (moved.device.type, moved.shape) == ("cuda", (ROWS, ROWS))
        assert moved.coalesce().values().shape == (PLACES,)
        assert moved.to_dense().shape == (ROWS, ROWS)
    assert 12_000 <= held <= 12_800  # 9,600 and 2,400 bytes, in blocks of 512


PRODUCTS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [torch.spmm, torch.sparse.mm, torch.matmul]


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_with_a_sparse_matrix_has_a_gradient(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    with VirtualDevice(H100, steps=None) as device:
        weight = torch.randn(ROWS, 32, device="cuda", requires_grad=True)
        made = product(graph().cuda(), weight)
        made.sum().backward()
        assert made.shape == (ROWS, 32)
        assert weight.grad is not None
        assert weight.grad.shape == weight.shape
    assert not [name for kind, name in device.ledger.remarks if kind == "unknown_op"]


def test_a_sparse_tensor_is_made_on_the_device() -> None:
    with VirtualDevice(H100, steps=None):
        found = graph()
        given = found.indices(), found.values()
        made = torch.sparse_coo_tensor(*given, (ROWS, ROWS), device="cuda", check_invariants=False)
        assert made.device.type == "cuda"
