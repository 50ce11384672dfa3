"""Sparse tensors of places (COO), sparse gradients among them: values and their places, as on CUDA.

Adding up repeated rows (coalesce) leaves the distinct ones, if the places are known. Else it leaves all rows, the most
that there can be. Tensors of compressed rows are in compressed.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.tensor import COMPRESSED, CUDA, Inside, virtual
from elbowroom.torch_compat.core import node_name

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

aten: Any = torch.ops.aten
SORTED = "coalescing sparse tensors (scratch of sorting them is not counted)"
SAID = "coalescing sparse tensors (no row is taken to repeat, and scratch of sorting them is not counted)"


class SparseParts(NamedTuple):
    """Parts of a compressed tensor."""

    compressed: torch.Tensor
    plain: torch.Tensor
    values: torch.Tensor


def parts_of(tensor: torch.Tensor) -> SparseParts:
    """Return a tensor's parts as C++ has them: meta tensors for one on the device."""
    by_rows = tensor.layout is torch.sparse_csr
    with Inside():
        return SparseParts(
            (aten.crow_indices if by_rows else aten.ccol_indices).default(tensor),
            (aten.col_indices if by_rows else aten.row_indices).default(tensor),
            aten.values.default(tensor),
        )


def is_compressed(value: Any) -> bool:
    """Return whether a value is a tensor of compressed rows or columns."""
    return isinstance(value, torch.Tensor) and value.layout in COMPRESSED


def places_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and places of a tensor of places (COO), as meta tensors."""
    with Inside():
        return aten._values.default(tensor), aten._indices.default(tensor)


def with_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the dense tensors of which a sparse one is made."""
    return parts_of(tensor) if is_compressed(tensor) else places_of(tensor)


def of_places(places: torch.Tensor, values: torch.Tensor, shape: Any, *, coalesced: bool) -> torch.Tensor:
    """Make a tensor on the device of these parts, which it shares."""
    given: dict[str, Any] = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": "meta"}
    dims = places.shape[0], values.dim() - 1
    with Inside():
        made = aten._sparse_coo_tensor_with_dims_and_tensors.default(
            *dims, tuple(shape), places, values, **given, is_coalesced=coalesced
        )
    return virtual(made, CUDA)


def _made(like: torch.Tensor, places: torch.Tensor, values: torch.Tensor, coalesced: bool) -> torch.Tensor:
    given: dict[str, Any] = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": "meta"}
    dims = like.sparse_dim(), like.dense_dim()
    return aten._sparse_coo_tensor_with_dims_and_tensors.default(
        *dims, like.shape, places, values, **given, is_coalesced=coalesced
    )


def _clone(tensor: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Copy both parts of a sparse tensor; its meta kernel returns one without rows.

    The engine copies a first gradient only if its rows are not dense (accumulate_grad.h), except for tensors of a
    subclass.
    """
    if tensor.layout is not torch.sparse_coo:
        return aten.clone.default(tensor, memory_format=memory_format)
    values, places = places_of(tensor)
    if node_name().endswith("AccumulateGrad") and values.is_contiguous() and places.is_contiguous():
        return _made(tensor, places, values, tensor.is_coalesced())
    return _made(tensor, _like(places), torch.empty_like(values), tensor.is_coalesced())


def _like(part: torch.Tensor) -> torch.Tensor:
    """Copy places; the value of the copy is known if theirs is."""
    made = torch.empty_like(part)
    known = known_of(part)
    if known is not None and KnownValues.current is not None:
        KnownValues.current.keep(virtual(made, CUDA), known, KnownValues.current.is_certain(virtual(part, CUDA)))
    return made


def known_of(part: torch.Tensor) -> torch.Tensor | None:
    """Return the value of places, if it is known."""
    return None if KnownValues.current is None else KnownValues.current.of(virtual(part, CUDA))


def _coalesce(tensor: torch.Tensor) -> torch.Tensor:
    values, places = places_of(tensor)
    return _made(tensor, torch.empty_like(places), torch.empty_like(values), coalesced=True)


def _mask(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    values, places = places_of(mask)
    rows = values.new_empty(values.shape, dtype=tensor.dtype)
    return _made(mask, torch.empty_like(places), rows, mask.is_coalesced())


def _add_(tensor: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    """Add rows where they belong."""
    sparse = isinstance(other, torch.Tensor) and other.layout is torch.sparse_coo
    return tensor if sparse and tensor.layout is torch.strided else aten.add_.Tensor(tensor, other, alpha=alpha)


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same places and values: its meta kernel forgets them."""
    if tensor.layout is not torch.sparse_coo:
        return aten.detach.default(tensor)
    values, places = places_of(tensor)
    return _made(tensor, places, values, tensor.is_coalesced())


def _t(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.sparse_coo:
        return aten.t.default(tensor)
    return _turned(tensor, 0, tensor.dim() - 1)


def _transpose(tensor: torch.Tensor, first: int, second: int) -> torch.Tensor:
    if tensor.layout is not torch.sparse_coo:
        return aten.transpose.int(tensor, first, second)
    return _turned(tensor, first % tensor.dim(), second % tensor.dim())


def _turned(tensor: torch.Tensor, first: int, second: int) -> torch.Tensor:
    """Make a copy whose rows are not in order (TensorShape.cpp: transpose)."""
    values, places = places_of(tensor)
    shape = list(tensor.shape)
    shape[first], shape[second] = shape[second], shape[first]
    given: dict[str, Any] = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": "meta"}
    parts = torch.empty_like(places), torch.empty_like(values)
    return aten._sparse_coo_tensor_with_dims_and_tensors.default(
        tensor.sparse_dim(), tensor.dense_dim(), shape, *parts, **given, is_coalesced=first == second
    )


def _to_dense(tensor: torch.Tensor, dtype: torch.dtype | None = None, _: bool | None = None) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="meta")


def _mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Multiply a sparse matrix and a dense one; the result is dense."""
    if first.layout is not torch.sparse_coo or second.layout is not torch.strided:
        return aten.mm.default(first, second)
    return torch.empty((first.shape[0], second.shape[1]), dtype=second.dtype, device="meta")


def _sparse_addmm(_added: Any, first: torch.Tensor, second: torch.Tensor, **_factors: Any) -> torch.Tensor:
    return torch.empty((first.shape[0], second.shape[1]), dtype=second.dtype, device="meta")


def on_device(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap `torch.sparse_coo_tensor`, whose C++ needs a current cuda device: its parts go there first."""

    @functools.wraps(make)
    def made(indices: Any = None, values: Any = None, *args: Any, device: Any = None, **others: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda" or indices is None:
            return make(indices, values, *args, device=device, **others)
        indices, values = torch.as_tensor(indices).to(device), torch.as_tensor(values).to(device)
        return make(indices, values, *args, **others)

    return made


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _detach,
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten._to_dense.default: _to_dense,
    aten.mm.default: _mm,
    aten._sparse_addmm.default: _sparse_addmm,
    aten.clone.default: _clone,
    aten.add_.Tensor: _add_,
    aten._coalesce.default: _coalesce,
    aten.sparse_mask.default: _mask,
}


def _coalesce_rule(call: ScratchCall) -> None:
    """Allocate positions, their order and the begins of rows (SparseCUDATensor.cu; rig)."""
    _, places = places_of(call.args[0])
    call.unsupported(SAID if known_of(places) is None else SORTED)
    for _ in range(3):
        call.temp(places.shape[1] * places.element_size())


def _turn_rule(call: ScratchCall) -> None:
    """Allocate copies of both parts, then of one row of places while two are exchanged (rig)."""
    call.out(0)
    tensor = call.args[0]
    if tensor.layout is torch.sparse_coo:
        _, places = places_of(tensor)
        call.temp(places.shape[1] * places.element_size())


def product(call: ScratchCall, matrix: torch.Tensor, dense: torch.Tensor) -> None:
    """Allocate for a sparse matrix times a dense one: row begins, int32 columns, a copy by columns.

    Source: SparseBlasImpl.cpp. Further memory of cuSPARSE is not known, and small.
    """
    values, places = places_of(matrix)
    count = places.shape[1]
    with Inside():
        coalesced = aten.is_coalesced.default(matrix)
    call.out(0)
    if not coalesced:
        call.unsupported(SAID)
        sorting = [call.temp(count * places.element_size()) for _ in range(3)]
        call.drop(call.temp(2 * count * places.element_size()), *reversed(sorting))
        call.temp(places.numel() * places.element_size() + values.numel() * values.element_size())
    call.temp((matrix.shape[0] + 1) * 4)
    call.drop(call.temp(count * 4))
    call.temp(count * 4)
    call.temp(dense.numel() * dense.element_size())
    dense_copy(call, dense)


def in_order(matrix: torch.Tensor) -> bool:
    """Return whether a matrix's rows or columns are contiguous, or it is a vector without gaps."""
    if matrix.dim() < 2:
        return matrix.is_contiguous()
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    return (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))


def dense_copy(call: ScratchCall, *matrices: torch.Tensor) -> None:
    """Allocate copies of matrices that cuSPARSE cannot read, such as expanded gradients (SparseBlasImpl.cpp; rig)."""
    for matrix in matrices:
        if not in_order(matrix):
            call.temp(matrix.numel() * matrix.element_size())


def _addmm_rule(call: ScratchCall) -> None:
    if not is_compressed(call.args[1]) and not is_compressed(call.args[2]):
        product(call, *call.args[1:3])
        return
    call.out(0)
    dense_copy(call, *(each for each in call.args[1:3] if not is_compressed(each)))


RULES: dict[Any, Callable[[ScratchCall], None]] = {
    aten._coalesce.default: _coalesce_rule,
    aten._sparse_addmm.default: _addmm_rule,
    aten.t.default: _turn_rule,
    aten.transpose.int: _turn_rule,
}
