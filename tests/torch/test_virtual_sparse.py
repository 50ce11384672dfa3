"""Sparse tensors on the virtual device: places and values, and the products that graphs are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.errors import CaptureError
from tests.torch.virtual_gpu import H100

ROWS, PLACES = 100, 600
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CS[RC]|BSR) tensor support:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]


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


def by_rows() -> torch.Tensor:
    """A matrix of the host in CSR: 100 rows of 6 places each, so 101 x 8, 600 x 8 and 600 x 4 bytes."""
    columns = (torch.arange(PLACES) % ROWS).view(ROWS, 6).sort(1)[0].view(-1)
    return torch.sparse_csr_tensor(torch.arange(ROWS + 1) * 6, columns, torch.ones(PLACES), (ROWS, ROWS))


def sizes_of(device: VirtualDevice, work: Callable[[], object]) -> list[int]:
    """Bytes of what is allocated and, as negative ones, freed."""
    first = len(device.ledger.events)
    kept = work()
    found = [size for _, _, size in device.ledger.events[first:]]
    del kept
    return found


ORDER = [  # of the CUDA build: places sorted anew (rig); the buffers of cuSPARSE are left out
    *(8, 8, 1279, -1279, -8, 800, 808, -800, 9600, 4800, 4800, -4800, -4800, 4800, 4800, 4800, 4800, -4800, -4800),
    *(9600, 2400, 808, 808, 800, -800, -808, -4800, -4800, -9600, -808, -8),
]
CONVERSIONS: dict[str, tuple[Callable[[torch.Tensor], object], list[int]]] = {
    "to coo": (lambda given: given.to_sparse_coo(), [9600]),
    "and back": (lambda given: given.to_sparse_coo().to_sparse_csr(), [9600, 808]),
    "turned": (lambda given: given.t(), []),
    "turned by rows": (lambda given: given.t().to_sparse_csr(), ORDER),
    "cloned": (lambda given: given.clone(), [2400, 4800, 808]),
    "doubled": (lambda given: given * 2.0, [2400, 4800, 808]),
    "in float64": (lambda given: given.to(torch.float64), [4800, 808, 4800]),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_matrix_by_rows_is_converted_with_the_bytes_of_the_cuda_build(name: str) -> None:
    work, expected = CONVERSIONS[name]
    with VirtualDevice(H100, steps=None) as device:
        moved = by_rows().cuda()
        found = sizes_of(device, lambda: work(moved))
    # "and back" frees its places as int64 with the COO tensor, after the rows were made from them
    assert [size for size in found if size > 0] == [size for size in expected if size > 0]
    assert name == "and back" or found == expected


def test_a_matrix_by_rows_is_moved_and_tells_its_parts() -> None:
    with VirtualDevice(H100, steps=None) as device:
        host = by_rows()
        assert sizes_of(device, lambda: host.cuda()) == [2400, 808, 4800]
        moved = host.cuda()
        assert (moved.layout, moved.device.type) == (torch.sparse_csr, "cuda")
        assert moved.crow_indices().tolist() == host.crow_indices().tolist()
        assert moved.col_indices().tolist() == host.col_indices().tolist()
        parts = moved.crow_indices(), moved.col_indices(), moved.values()
        made = torch.sparse_csr_tensor(*parts, (ROWS, ROWS), device="cuda")
        assert made.values().data_ptr() == moved.values().data_ptr()


def test_products_with_a_matrix_by_rows_have_gradients() -> None:
    with VirtualDevice(H100, steps=None):
        values = torch.ones(PLACES, device="cuda", requires_grad=True)
        weight = torch.randn(ROWS, 32, device="cuda", requires_grad=True)
        given = by_rows()
        matrix = torch.sparse_csr_tensor(given.crow_indices().cuda(), given.col_indices().cuda(), values, (ROWS, ROWS))
        (matrix @ weight).sum().backward()
        for found in (weight, values):
            assert found.grad is not None
            assert found.grad.shape == found.shape
        assert (matrix.detach() @ weight[:, 0]).shape == (ROWS,)
        assert (weight.t() @ matrix.detach()).shape == (32, ROWS)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_a_product_of_two_sparse_matrices_has_the_places_that_it_has(layout: torch.layout) -> None:
    # given a matrix whose product with itself has this many places on the host
    host = by_rows()
    dense = host.to_dense() @ host.to_dense()
    with VirtualDevice(H100, steps=None) as device:
        moved = (host if layout is torch.sparse_csr else host.to_sparse_coo()).cuda()
        # when it is made on the device, then it has as many, and where they are is known
        found = (moved @ moved).to_sparse_coo()
        assert found.indices().tolist() == dense.nonzero().t().tolist()
        assert ("workspace_model", "cuSPARSE's product of sparse matrices") in device.ledger.remarks
        assert not [name for kind, name in device.ledger.remarks if kind in ("assumed_value", "unknown_op")]


def test_places_that_are_not_known_are_taken_as_spread_and_that_is_said() -> None:
    with VirtualDevice(H100, steps=None) as device:
        given = by_rows()
        columns = torch.randn(PLACES, 1000, device="cuda").argmax(1)
        matrix = torch.sparse_csr_tensor(given.crow_indices().cuda(), columns, torch.ones(PLACES).cuda(), (ROWS, ROWS))
        made = matrix @ matrix
        # 36 throws at 100 columns hit 100 (1 - 0.99^36) = 30.4 of them in each of 100 rows
        assert 2900 <= made.values().numel() <= 3600
        assert ("assumed_value", "places of a product of sparse matrices") in device.ledger.remarks


def test_rows_that_repeat_are_one_where_places_are_known() -> None:
    with VirtualDevice(H100, steps=None):
        places = torch.tensor([[0, 0, 3], [1, 1, 2]])
        given = torch.sparse_coo_tensor(places, torch.ones(3), (4, 4), check_invariants=False).cuda()
        assert given.coalesce().indices().tolist() == [[0, 3], [1, 2]]


def test_an_op_of_a_matrix_by_rows_without_a_model_is_refused_with_what_to_use() -> None:
    with (
        VirtualDevice(H100, steps=None),
        pytest.raises(CaptureError, match=r"aten\.add\.Tensor: .*layout torch\.sparse_csr; .*\.to_sparse_coo\(\)"),
    ):
        _ = by_rows().cuda() + by_rows().cuda()


def test_a_layout_without_a_model_is_refused_with_the_one_to_use() -> None:
    with (
        VirtualDevice(H100, steps=None),
        pytest.raises(CaptureError, match=r"layout torch\.sparse_bsr; .*put \.to_sparse_csr\(\)"),
    ):
        by_rows().to_sparse_bsr((2, 2)).cuda()


EXPANDED = torch.ones(()).expand(ROWS, 32)  # as the gradient of a sum is
PLAIN = (12_800, 12_800)  # zeros and the result, of 100 x 32 x 4 bytes
OF_DENSE: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], list[int]]] = {
    "by rows": (lambda sparse, dense: sparse @ dense, [*PLAIN, -12_800]),
    "by rows, expanded": (lambda sparse, _: sparse @ EXPANDED.cuda(), [*PLAIN, 12_800, -12_800, -12_800]),
    "by rows, every second column": (
        lambda sparse, dense: sparse @ dense.repeat(1, 2)[:, ::2],
        [25_600, *PLAIN, 12_800, -12_800, -12_800, -25_600],
    ),
    "of places": (
        lambda sparse, dense: sparse.to_sparse_coo() @ dense,
        [9600, *PLAIN, 404, 2400, -2400, 2400, 12_800, -12_800, -2400, -404, -12_800, -9600],
    ),
    "two of places": (
        lambda sparse, _: torch.sparse.mm(sparse.to_sparse_coo(), sparse.to_sparse_coo()),
        [9600, 9600, *2 * (404, 2400, -2400, 2400), 404],
    ),
    "a vector with gaps": (lambda sparse, dense: sparse.mv(dense[:, 0]), [400, 400, -400]),
}


@pytest.mark.parametrize("name", OF_DENSE)
def test_what_cusparse_cannot_read_is_copied_as_the_cuda_build_copies_it(name: str) -> None:
    work, expected = OF_DENSE[name]
    with VirtualDevice(H100, steps=None) as device:
        sparse, dense = by_rows().cuda(), torch.randn(ROWS, 32, device="cuda")
        EXPANDED.cuda()
        found = sizes_of(device, lambda: work(sparse, dense))
    if "expanded" in name:
        found = [size for size in found if abs(size) != EXPANDED.element_size()]
    assert found[: len(expected)] == expected
