"""Compressed: sparse tensors of compressed rows or columns (CSR, CSC): where rows begin, columns, values, as on CUDA.

Each op is built of the dense ops that torch uses for it (TensorConversions.cpp, SparseCsrTensor.cpp), on the three
parts. So known places stay known, and scratch memory is that of the dense ops. Places of a product of two are computed
if those of its factors are known. Else they count as spread by chance, and a remark says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elbowroom.capture.virtual.ops.sparse import SparseParts, is_compressed, known_of, of_places, parts_of, places_of
from elbowroom.capture.virtual.tensor import CPU, CUDA, Inside, is_virtual, virtual
from elbowroom.errors import CaptureError
from elbowroom.torch_compat.core import without_torch_function

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import Special, VirtualMode

aten: Any = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
PRODUCTS = 2**24
"""Most multiplications of two sparse matrices that are carried out on the host, about a second."""
SPREAD = "places of a product of sparse matrices"
SPGEMM = "cuSPARSE's product of sparse matrices"
REFUSED = (
    "virtual device: {}: given an op that has no model for tensors of layout {}; allowed are conversions, "
    "transposition, copies, scaling and products; for the estimate put .to_sparse_coo() or .to_dense() before it"
)


def _on_device(tensor: torch.Tensor) -> SparseParts:
    return SparseParts._make(virtual(part, CUDA) for part in parts_of(tensor))


def _form(parts: SparseParts, layout: torch.layout, shape: Any) -> torch.Tensor:
    """Make the meta tensor of these parts."""
    with Inside():
        return aten.sparse_compressed_tensor.comp_plain_value_size(
            *parts, tuple(shape), dtype=parts.values.dtype, layout=layout, device="meta"
        )


def _made(parts: SparseParts, layout: torch.layout, shape: Any) -> torch.Tensor:
    return virtual(_form(parts, layout, shape), CUDA)


def refused(func: Any, args: Args) -> CaptureError:
    """Make the error for an op without a model."""
    layout = next(each.layout for each in args if is_compressed(each))
    return CaptureError(REFUSED.format(func, layout))


def _other(layout: torch.layout) -> torch.layout:
    return torch.sparse_csc if layout is torch.sparse_csr else torch.sparse_csr


# Conversions


def _copied(mode: VirtualMode, _: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Copy places and values; of compressed tensors first values, then where rows begin, then columns (rig)."""
    tensor, dtype = args[0], kwargs.get("dtype")
    device = kwargs.get("device") or (CUDA if is_virtual(tensor) else CPU)
    found = places_of(tensor)[::-1] if tensor.layout is torch.sparse_coo else parts_of(tensor)
    given = [virtual(part, CUDA) if is_virtual(tensor) else part.detach() for part in found]
    first, values = given[:-1], given[-1]
    with Inside():
        coalesced = tensor.layout is torch.sparse_coo and aten.is_coalesced.default(tensor)
    with mode:
        early = aten._to_copy.default(values, dtype=dtype, device=device) if len(first) > 1 else None
        places = [aten._to_copy.default(part, device=device) for part in first]
        values = aten._to_copy.default(values, dtype=dtype, device=device) if early is None else early
    if device.type == "cuda":
        if tensor.layout is torch.sparse_coo:
            return of_places(places[0], values, tensor.shape, coalesced=coalesced)
        return _made(SparseParts(places[0], places[1], values), tensor.layout, tensor.shape)
    if tensor.layout is torch.sparse_coo:
        unchecked: dict[str, Any] = {"is_coalesced": coalesced, "check_invariants": False}
        return torch.sparse_coo_tensor(places[0], values, tensor.shape, **unchecked)
    return aten.sparse_compressed_tensor.comp_plain_value_size(
        places[0], places[1], values, tensor.shape, dtype=values.dtype, layout=tensor.layout, device=CPU
    )


def _clone(mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    compressed, plain, values = _on_device(args[0])
    with mode:
        new, columns = aten.clone.default(values), aten.clone.default(plain)
        parts = SparseParts(aten.clone.default(compressed), columns, new)
    return _made(parts, args[0].layout, args[0].shape)


def _scaled(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Change values, and copy places."""
    tensor, *others = args
    if any(isinstance(each, torch.Tensor) and each.dim() for each in others) or not is_compressed(tensor):
        raise refused(func, args)
    compressed, plain, values = _on_device(tensor)
    with mode:
        new, columns = func(values, *others, **kwargs), aten.clone.default(plain)
        parts = SparseParts(aten.clone.default(compressed), columns, new)
    return _made(parts, tensor.layout, tensor.shape)


def _detach(_mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    return _made(parts_of(args[0]), args[0].layout, args[0].shape)


def _turned(_mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    """Transpose: the same parts under the other layout."""
    tensor = args[0]
    if len(args) > 1 and (args[1] - args[2]) % 2 == 0:
        return _made(parts_of(tensor), tensor.layout, tensor.shape)
    return _made(parts_of(tensor), _other(tensor.layout), tensor.shape[::-1])


def _flip(mode: VirtualMode, tensor: torch.Tensor) -> torch.Tensor:
    """Compress the other way: places are sorted again (sparse_compressed_to_flipped)."""
    compressed, plain, values = _on_device(tensor)
    by_rows = tensor.layout is torch.sparse_csr
    count, (major, minor) = plain.shape[0], tensor.shape if by_rows else tensor.shape[::-1]
    with mode:
        batches = aten.full.default([1], count, dtype=compressed.dtype, device=CUDA)
        before = aten.sub_.Tensor(aten.cumsum.default(batches, -1), batches)
        del batches
        begins = aten.add.Tensor(aten.slice.Tensor(compressed, -1, 0, -1), before)
        starts = aten.empty_like.default(compressed)
        aten.copy_.default(aten.slice.Tensor(starts, -1, 0, -1), begins)
        del begins
        aten.fill_.Scalar(aten.slice.Tensor(starts, -1, -1), count)
        places = aten._convert_indices_from_csr_to_coo.default(starts, plain, out_int32=plain.dtype is torch.int32)
        rows, columns = aten.select.int(places, 0, 0), aten.select.int(places, 0, 1)
        batch = aten.div.Tensor_mode(rows, major, rounding_mode="trunc")
        aten.fmod_.Scalar(rows, major)
        offsets = aten.mul.Tensor(batch, minor)
        aten.add_.Tensor(columns, offsets)
        del batch, offsets
        numbers = aten.arange.default(count, dtype=plain.dtype, device=CUDA)
        order = aten.sort.stable(columns, stable=True)[1]
        places = [places, aten.index_select.default(places, 1, order)]
        values = aten.index_select.default(values, 0, order)
        narrow: dict[str, Any] = {"out_int32": plain.dtype is torch.int32}
        found = aten._convert_indices_from_coo_to_csr.default(aten.select.int(places[1], 0, 1), minor, **narrow)
        made = aten.zeros.default([minor + 1], dtype=found.dtype, device=CUDA)
        begins = aten.slice.Tensor(found, 0, 1)
        aten.copy_.default(aten.slice.Tensor(made, -1, 1), aten.sub.Tensor(begins, aten.slice.Tensor(found, 0, 0, 1)))
        parts = SparseParts(made, aten.select.int(places[1], 0, 0), values)
        del begins, found, order, numbers, rows, columns, places, starts, before
    return _made(parts, _other(tensor.layout), tensor.shape)


def _to_compressed(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Run `to_sparse_csr` or `to_sparse_csc` on any tensor."""
    tensor = args[0]
    wanted = torch.sparse_csr if func is aten._to_sparse_csr.default else torch.sparse_csc
    if tensor.layout is wanted:
        return tensor
    if is_compressed(tensor):
        return _flip(mode, tensor)
    if tensor.layout is torch.sparse_coo:
        return _of_places(mode, tensor, wanted)
    return _of_dense(mode, tensor, wanted)


def _of_places(mode: VirtualMode, tensor: torch.Tensor, wanted: torch.layout) -> torch.Tensor:
    """Compress a COO tensor: row begins are new, columns and values stay where they are."""
    with mode:
        found = tensor.coalesce()
        places, values = found.indices(), found.values()
        if wanted is torch.sparse_csc:
            order = aten.sort.default(aten.select.int(places, 0, 1))[1]
            places = aten.index_select.default(places, 1, order)
            values = aten.index_select.default(values, 0, order)
        major = 0 if wanted is torch.sparse_csr else 1
        begins = aten._convert_indices_from_coo_to_csr.default(aten.select.int(places, 0, major), tensor.shape[major])
        parts = SparseParts(begins, aten.select.int(places, 0, 1 - major), values)
    return _made(parts, wanted, tensor.shape)


def _of_dense(mode: VirtualMode, tensor: torch.Tensor, wanted: torch.layout) -> torch.Tensor:
    """Compress a dense tensor: its places are those of nonzero elements, or all if these are not known."""
    turned = wanted is torch.sparse_csc
    with mode:
        dense = aten.t.default(tensor) if turned else tensor
        places = aten.nonzero.default(aten.ne.Scalar(dense, 0))
        rows, columns = aten.select.int(places, 1, 0), aten.select.int(places, 1, 1)
        begins = aten._convert_indices_from_coo_to_csr.default(rows, dense.shape[0])
        flat = aten.add.Tensor(aten.mul.Tensor(rows, dense.shape[1]), columns)
        values = aten.index_select.default(aten.reshape.default(dense, [-1]), 0, flat)
    return _made(SparseParts(begins, columns, values), wanted, tensor.shape)


def _to_places(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Run `to_sparse_coo`: places are new, values stay where they are."""
    tensor = args[0]
    with mode:
        if is_compressed(tensor):
            compressed, plain, values = _on_device(tensor)
            turned = tensor.layout is torch.sparse_csc
            places = aten._convert_indices_from_csr_to_coo.default(compressed, plain, transpose=turned)
        else:
            turned = False
            places = aten.t.default(aten.nonzero.default(tensor))
            values = aten.index.Tensor(tensor, list(aten.unbind.int(places)))
    return of_places(places, values, tensor.shape, coalesced=not turned)


def _to_dense(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Make a dense tensor: add values at indices computed from rows and columns (sparse_compressed_to_dense)."""
    tensor = args[0]
    dtype = (args[1] if len(args) > 1 else None) or kwargs.get("dtype")
    return _dense_of(mode, _on_device(tensor), tensor, dtype or tensor.dtype)


def _dense_of(mode: VirtualMode, given: SparseParts, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    compressed, plain, values = given
    count, (rows, columns) = plain.shape[0], tensor.shape
    major = rows if tensor.layout is torch.sparse_csr else columns
    turned = tensor.layout is torch.sparse_csc
    with mode:
        dense = aten.zeros.default([rows, columns], dtype=dtype, device=CUDA)
        of_values = _repeated(_first(), count)
        first = _first()
        of_rows = _repeated(first, major)
        offsets = aten.mul.Tensor(of_rows, count)
        begins = aten.add.Tensor(aten.slice.Tensor(compressed, 0, 0, major), offsets)
        end = aten.mul.Tensor(aten.ones.default([1], dtype=compressed.dtype, device=CUDA), count)
        starts = aten.cat.default([begins, end])
        del end, first, offsets, begins, of_rows
        places = aten._convert_indices_from_csr_to_coo.default(starts, plain, transpose=turned)
        row, column = aten.select.int(places, 0, 0), aten.select.int(places, 0, 1)
        row = aten.sub_.Tensor(row, aten.mul.Tensor(of_values, rows))
        first = aten.mul.Tensor(of_values, rows * columns)
        second = aten.mul.Tensor(row, columns)
        numbers = aten.add.Tensor(aten.add.Tensor(first, second), aten.mul.Tensor(column, 1))
        del first, second
        flat = aten.view.default(dense, [-1])
        aten.index_add_.default(
            flat, 0, numbers, values if values.dtype is dtype else aten._to_copy(values, dtype=dtype)
        )
    return dense


def _repeated(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return aten.clone.default(aten.expand.default(tensor, [count]), memory_format=torch.contiguous_format)


def _first() -> torch.Tensor:
    return aten.arange.start_step(0, 1, dtype=torch.int64, device=CUDA)


def _mask(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Take the values of a dense tensor at the places of a sparse one (sparse_mask_sparse_compressed)."""
    tensor, mask = args
    compressed, plain, values = _on_device(mask)
    count = plain.shape[0]
    with mode:
        true = aten.expand.default(aten.ones.default([1], dtype=torch.bool, device=CUDA), [count])
        if tensor.layout is torch.strided:
            dense = _dense_of(mode, SparseParts(compressed, plain, true), mask, torch.bool)
            places = aten.empty.memory_format([2, count], dtype=torch.int64, device=CUDA)
            new = aten.index_select.default(aten.reshape.default(tensor, [-1]), 0, aten.select.int(places, 0, 0))
            del dense, places
        else:
            new = aten.clone.default(values)
        parts = SparseParts(aten.clone.default(compressed), aten.clone.default(plain), new)
    return _made(parts, mask.layout, mask.shape)


def _coalesce(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Merge repeated places, if they are known."""
    values, places = places_of(args[0])
    known = known_of(places)
    if known is None:
        return mode.run(func, args, kwargs)
    with without_torch_function():
        found = torch.unique(known, dim=1)
    rows = torch.empty(found.shape, dtype=places.dtype, device="meta")
    new = torch.empty((found.shape[1], *values.shape[1:]), dtype=values.dtype, device="meta")
    mode.values.keep(virtual(rows, CUDA), found, mode.values.is_certain(virtual(places, CUDA)))
    return mode.note(func, args, kwargs, of_places(rows, new, args[0].shape, coalesced=True))


# Products


def _rows_of(mode: VirtualMode, tensor: torch.Tensor) -> torch.Tensor:
    return _flip(mode, tensor) if tensor.layout is torch.sparse_csc else tensor


def _mm(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Run `mm`, `addmm` or `_sparse_addmm`; cuSPARSE's scratch with a dense matrix is not known, and small."""
    first, second = args[-2:]
    if first.layout is torch.sparse_coo and not is_compressed(second):
        both = second.layout is torch.sparse_coo
        return _product_of_places(mode, func, args, kwargs) if both else mode.run(func, args, kwargs)
    if is_compressed(first) and is_compressed(second):
        if len(args) > 2:
            raise refused(func, args)
        return _product(mode, _rows_of(mode, first), _rows_of(mode, second))
    shape = [first.shape[0], second.shape[1]]
    dtype = second.dtype if is_compressed(first) else first.dtype
    if is_compressed(first):
        first = _rows_of(mode, first)
    with mode:
        added = None if len(args) > 2 else aten.zeros.default(shape, dtype=dtype, device=CUDA)
    made = virtual(torch.empty(shape, dtype=dtype, device="meta"), CUDA)
    if second.layout is torch.sparse_csr:
        mode.ledger.alloc(made)
        second = _flip(mode, second)
    found = mode.note(func, (*args[:-2], first, second), kwargs, made)
    del second, added, first
    return found


def _mv(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    *before, matrix, vector = args
    matrix = _rows_of(mode, matrix)
    made = virtual(torch.empty(matrix.shape[0], dtype=vector.dtype, device="meta"), CUDA)
    return mode.note(func, (*before, matrix, vector), kwargs, made)


def _product(mode: VirtualMode, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Multiply two sparse matrices; places of all three are int32 (SparseBlasImpl.cpp: spgemm; rig)."""
    one, two = _on_device(first), _on_device(second)
    rows, columns = first.shape[0], second.shape[1]
    product = _places_of(mode, one, two, (rows, columns))
    with mode:
        held = [aten.zeros.default([count], dtype=torch.int64, device=CUDA) for count in (rows + 1, 1, rows + 1)]
        del held[1]
        wide = [part for each in (one, two) for part in (each.plain, each.compressed) if part.dtype is torch.int64]
        narrow = [aten._to_copy.default(part, dtype=torch.int32) for part in wide]
        begins = aten.empty.memory_format([rows + 1], dtype=torch.int32, device=CUDA)
        held.pop()
    made = _filled(mode, product, begins, one.values.dtype)
    while narrow:
        narrow.pop(0)
    return _made(made, torch.sparse_csr, (rows, columns))


def _filled(mode: VirtualMode, product: SparseProduct, begins: torch.Tensor, dtype: torch.dtype) -> SparseParts:
    """Make columns and values of a product, after cuSPARSE's scratch."""
    _workspace(mode, product.multiplications * (4 + dtype.itemsize))
    with mode:
        columns = aten.empty.memory_format([product.count], dtype=torch.int32, device=CUDA)
        values = aten.empty.memory_format([product.count], dtype=dtype, device=CUDA)
    made = SparseParts(begins, columns, values)
    for part, real in zip(made, product.found or (None, None, None), strict=True):
        mode.values.drop(part)
        if real is not None and (part is not values or product.has_values):
            mode.values.keep(part, real.to(part.dtype), product.certain)
    return made


def _product_of_places(mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    """Multiply two COO tensors: both and the result go by rows, as int32 (SparseMatMul.cu; rig)."""
    given: list[SparseParts] = []
    with mode:
        for tensor in args:
            found = tensor.coalesce()
            places, values = found.indices(), found.values()
            row, column = aten.select.int(places, 0, 0), aten.select.int(places, 0, 1)
            begins = aten._convert_indices_from_coo_to_csr.default(row, tensor.shape[0], out_int32=True)
            aten._to_copy.default(column, dtype=torch.int32)
            given.append(SparseParts(begins, aten._to_copy.default(column, dtype=torch.int32), values))
    shape = args[0].shape[0], args[1].shape[1]
    product = _places_of(mode, given[0], given[1], shape)
    with mode:
        begins = aten.empty.memory_format([shape[0] + 1], dtype=torch.int32, device=CUDA)
    made = _filled(mode, product, begins, given[0].values.dtype)
    with mode:
        places = aten._convert_indices_from_csr_to_coo.default(made.compressed, made.plain)
    begins, columns, values = made
    del made, begins, columns
    while given:
        given.pop()
    return of_places(places, values, shape, coalesced=True)


def _workspace(mode: VirtualMode, size_bytes: int) -> None:
    """Note scratch for each multiplication's column and value; cuSPARSE is closed, so from none to twice as much."""
    mode.ledger.remark("workspace_model", SPGEMM)
    number = mode.ledger.scratch(max(1, size_bytes), "workspace")
    mode.ledger.bounds[number] = (0, max(1, 2 * size_bytes))
    mode.ledger.release(number)


class SparseProduct(NamedTuple):
    """A product of two sparse matrices: its number of places, and that of multiplications."""

    count: int
    multiplications: int
    found: SparseParts | None = None
    certain: bool = False
    has_values: bool = False


def _places_of(mode: VirtualMode, one: SparseParts, two: SparseParts, shape: tuple[int, int]) -> SparseProduct:
    known = [mode.values.of(part) for part in (*one[:2], *two[:2])]
    if any(part is None for part in known):
        return _spread(mode, one, two, shape)
    begins, columns, begins_of_two, columns_of_two = (part.long() for part in known if part is not None)
    inner = two.compressed.shape[0] - 1
    with without_torch_function():
        if not _are_places(columns, inner) or not _are_places(columns_of_two, shape[1]):
            return _spread(mode, one, two, shape)
        work = int(begins_of_two.diff()[columns].sum())
        if work > PRODUCTS:
            return _spread(mode, one, two, shape)._replace(multiplications=work)
        factors = mode.values.of(one.values), mode.values.of(two.values)
        ones = [torch.ones(part.shape[0], dtype=torch.float64) for part in (columns, columns_of_two)]
        where = (begins, columns, (shape[0], inner)), (begins_of_two, columns_of_two, (inner, shape[1]))
        found = _multiplied(where, ones)
        certain = all(map(mode.values.is_certain, (*one[:2], *two[:2])))
        if not certain:
            mode.ledger.remark("assumed_value", SPREAD)
        values = None
        if all(part is not None for part in factors):
            values = _multiplied(where, [part.double() for part in factors if part is not None])
        same = values is not None and len(values.plain) == len(found.plain)
        certain = certain and (not same or all(map(mode.values.is_certain, (one.values, two.values))))
        return SparseProduct(len(found.plain), work, values if same and values is not None else found, certain, same)


def _are_places(columns: torch.Tensor, count: int) -> bool:
    """Return whether columns exist; assumed ones may not."""
    return not columns.numel() or (int(columns.min()) >= 0 and int(columns.max()) < count)


def _multiplied(where: Any, values: list[torch.Tensor]) -> SparseParts:
    """Multiply really, by rows and columns: not every build for the host has a product of compressed matrices."""
    factors: list[torch.Tensor] = []
    for (begins, columns, shape), each in zip(where, values, strict=True):
        places = aten._convert_indices_from_csr_to_coo.default(begins, columns)
        factors.append(torch.sparse_coo_tensor(places, each, shape, is_coalesced=True, check_invariants=False))
    made = torch.sparse.mm(*factors).coalesce()
    places = made.indices()
    begins = aten._convert_indices_from_coo_to_csr.default(places[0].contiguous(), made.shape[0])
    return SparseParts(begins, places[1].contiguous(), made.values())


def _spread(mode: VirtualMode, one: SparseParts, two: SparseParts, shape: tuple[int, int]) -> SparseProduct:
    """Estimate the number of places by chance: of n columns, k throws hit n (1 - (1 - 1/n)^k)."""
    mode.ledger.remark("assumed_value", SPREAD)
    rows, columns = max(1, shape[0]), max(1, shape[1])
    work = one.plain.shape[0] * two.plain.shape[0] / max(1, two.compressed.shape[0] - 1)
    hit = columns * (1 - (1 - 1 / columns) ** (work / rows))
    return SparseProduct(int(rows * hit), int(work))


def _sum(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    with mode:
        return func(_on_device(args[0]).values, *args[1:], **kwargs)


def _on(ours: Callable[..., Any], others: Special | None) -> Special:
    """Use `ours` if an argument is compressed and the op is on the device; else the other one."""

    def special(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if not any(map(is_compressed, args)) and not (func in OF_ANY and args[0].layout in OF_ANY[func]):
            return mode.run(func, args, kwargs) if others is None else others(mode, func, args, kwargs)
        device = kwargs.get("device")
        if not any(map(is_virtual, args)) and (device is None or device.type != "cuda"):
            return func(*args, **kwargs)
        return ours(mode, func, args, kwargs)

    return special


OF_ANY = {
    aten._to_sparse.default: (torch.strided,),
    aten._to_sparse_csr.default: (torch.strided, torch.sparse_coo),
    aten._to_sparse_csc.default: (torch.strided, torch.sparse_coo),
    aten._to_copy.default: (torch.sparse_coo,),
    aten._sparse_sparse_matmul.default: (torch.sparse_coo,),
    aten._coalesce.default: (torch.sparse_coo,),
    aten.mm.default: (torch.sparse_coo,),
}
"""Ops that are run here for tensors of these layouts, too."""
PLAIN = {
    aten._nnz.default,
    aten.sparse_dim.default,
    aten.dense_dim.default,
    aten.values.default,
    aten.crow_indices.default,
    aten.col_indices.default,
    aten.ccol_indices.default,
    aten.row_indices.default,
}
"""Ops of compressed tensors that need no model."""
TABLE: dict[Any, Callable[..., Any]] = {
    aten._to_copy.default: _copied,
    aten.clone.default: _clone,
    aten.detach.default: _detach,
    aten.mul.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.div.Tensor: _scaled,
    aten.div.Scalar: _scaled,
    aten.neg.default: _scaled,
    aten.abs.default: _scaled,
    aten.relu.default: _scaled,
    aten.t.default: _turned,
    aten.transpose.int: _turned,
    aten._to_sparse.default: _to_places,
    aten._to_sparse_csr.default: _to_compressed,
    aten._to_sparse_csc.default: _to_compressed,
    aten._to_dense.default: _to_dense,
    aten.sparse_mask.default: _mask,
    aten._coalesce.default: _coalesce,
    aten._sparse_sparse_matmul.default: _product_of_places,
    aten.mm.default: _mm,
    aten.addmm.default: _mm,
    aten._sparse_addmm.default: _mm,
    aten.mv.default: _mv,
    aten.addmv.default: _mv,
    aten.sum.default: _sum,
}


PART_NAMES = {
    "compressed_indices",
    "plain_indices",
    "crow_indices",
    "col_indices",
    "ccol_indices",
    "row_indices",
    "values",
}


def on_device(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap `torch.sparse_csr_tensor` and its like, whose C++ needs a current cuda device: parts go there first."""

    @functools.wraps(make)
    def made(*args: Any, device: Any = None, **named: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return make(*args, device=device, **named)
        parts = [torch.as_tensor(each).to(device) for each in args[:3]]
        of_names = {name: torch.as_tensor(named.pop(name)).to(device) for name in PART_NAMES & named.keys()}
        return make(*parts, *args[3:], **of_names, **named)

    return made


def changes() -> list[tuple[Any, str, Any]]:
    """Return the changes of torch while the device is on."""
    names = ("sparse_csr_tensor", "sparse_csc_tensor", "sparse_compressed_tensor")
    return [(torch, name, on_device(getattr(torch, name))) for name in names]


def specials(others: dict[Any, Special]) -> dict[Any, Special]:
    """Return the replaced ops of compressed tensors, which call those of other tensors."""
    return {func: _on(ours, others.get(func)) for func, ours in TABLE.items()}
