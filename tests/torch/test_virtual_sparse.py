"""Sparse tensors on the virtual device: places and values, and the products that graphs are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.errors import CaptureError
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


def test_a_product_with_a_sparse_matrix_holds_no_dense_one() -> None:
    with VirtualDevice(H100, steps=None) as device:
        sparse, dense = graph().cuda(), torch.randn(ROWS, 32, device="cuda", requires_grad=True)
        first = len(device.ledger.events)
        torch.sparse.mm(sparse, dense).sum().backward()
        sizes = [size for _, _, size in device.ledger.events[first:] if size > 0]
    # Forward: zeros and results of 100 x 32 x 4 bytes, where 100 rows begin and 600 columns as int32, a copy.
    assert sizes[:6] == [12_800, 12_800, 404, 2_400, 2_400, 12_800]
    # Nothing has the bytes of a dense matrix of 100 x 100.
    assert max(sizes) < 4 * ROWS * ROWS


def test_what_is_turned_is_another_sparse_matrix_out_of_order() -> None:
    with VirtualDevice(H100, steps=None) as device:
        found = graph().cuda()
        before = device.ledger.allocated_bytes
        for turned in (found.t(), found.transpose(0, 1)):
            assert turned.layout is torch.sparse_coo
            assert not turned.is_coalesced()
            assert turned._values().shape == (PLACES,)
        assert found.detach()._values().shape == (PLACES,)
        assert found.detach()._values().data_ptr() == found._values().data_ptr()
        del turned
        assert device.ledger.allocated_bytes == before


def test_the_values_of_a_sparse_matrix_are_trained() -> None:
    # given an adapter that adds a sparse matrix to a weight, as PEFT's SHiRA does
    with VirtualDevice(H100, steps=None):
        places = graph().indices().cuda()
        values = torch.zeros(PLACES, device="cuda", requires_grad=True)
        added = torch.sparse_coo_tensor(places, values * 2.0, (ROWS, ROWS), check_invariants=False)
        made = torch.nn.functional.linear(torch.randn(8, ROWS, device="cuda"), torch.randn(ROWS, ROWS).cuda() + added)
        made.sum().backward()
        assert values.grad is not None
        assert values.grad.shape == (PLACES,)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_a_layout_without_a_model_is_refused_with_the_one_to_use() -> None:
    with (
        VirtualDevice(H100, steps=None),
        pytest.raises(CaptureError, match=r"layout torch\.sparse_csr; .*put \.to_sparse_coo\(\)"),
    ):
        graph().to_sparse_csr().cuda()
