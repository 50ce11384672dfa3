"""Tensors of the virtual device: shape, strides, dtype and a device, on a storage that has a size and no bytes.

Note: [What makes a tensor virtual]
A virtual tensor is one of torch's own, or of the user's subclass. For C++ it is a meta tensor with the dispatch keys of
cuda. If a model is built on the CPU first, it has the keys of the CPU. A tensor of the user's on "meta" has the keys of
meta. C++ passes device and keys on to every alias. So results of `.data`, `as_subclass` or `Parameter(...)` are virtual
as well. attributes.py has the attributes that Python sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast, final

import torch

from elbowroom.capture.job_rank import OwnGpu
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.errors import CaptureError
from elbowroom.torch_compat.core import (
    MetaKernels,
    as_subclass,
    backend_of,
    no_dispatch,
    unwrapped,
    without_torch_function,
)
from elbowroom.torch_compat.subclasses import wraps_others

CUDA = torch.device("cuda", OwnGpu.index)
CPU = torch.device("cpu")
META = torch.device("meta")
HOME = "_elbowroom_home"
"""Attribute of a storage with its device, if no ledger knows it."""

COMPRESSED = (torch.sparse_csr, torch.sparse_csc)
NO_LAYOUT = (
    "given a tensor of layout {}; allowed are dense ones and sparse ones of layout torch.sparse_coo, "
    "torch.sparse_csr and torch.sparse_csc; for the estimate put .to_sparse_csr() or .to_dense() before it"
)
LARGE_BYTES = 2**20
"""Least size of float tensors of the host that have no bytes: they are weights or made-up data."""

_GRAD: Callable[[torch.Tensor], Any] = cast("Any", torch.Tensor.grad).__get__
_ON_META: Callable[[torch.Tensor], bool] = torch.Tensor.is_meta.__get__  # pyright: ignore[reportAttributeAccessIssue]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Depth(threading.local):
    depth = 0


class AsMeta:
    """Context in which virtual tensors are meta tensors for Python too, as they are for C++."""

    here = _Depth()

    def __enter__(self) -> None:
        AsMeta.here.depth += 1

    def __exit__(self, *problem: object) -> None:
        AsMeta.here.depth -= 1


@final
class Inside:
    """Context for meta kernels, which expect meta tensors."""

    def __init__(self) -> None:
        self._kernels = MetaKernels()

    def __enter__(self) -> None:
        AsMeta.here.depth += 1
        self._kernels.__enter__()

    def __exit__(self, *problem: object) -> None:
        self._kernels.__exit__(*problem)
        AsMeta.here.depth -= 1


def home_of(tensor: torch.Tensor) -> torch.device | None:
    """Return the device of a virtual tensor; for any other tensor the result is None."""
    if type(tensor) in _PLAIN:
        if not _ON_META(tensor):
            return None
    else:
        with without_torch_function():
            if not _ON_META(tensor):
                return None
    backend = backend_of(tensor) or backend_of(unwrapped(tensor))
    if backend:
        return CUDA if backend == "CUDA" else CPU
    return None if type(tensor) in _PLAIN else _home_inside(tensor)


def _home_inside(tensor: torch.Tensor) -> torch.device | None:
    """Return the device of the tensor inside a wrapper: C++ gives a DTensor no key of a device."""
    if not wraps_others(tensor):
        return None
    return next((home for part in inside(tensor) if (home := home_of(part)) is not None), None)


def is_virtual(value: Any) -> bool:
    """Return whether a value is a tensor of the virtual device, or one of its host without bytes."""
    return isinstance(value, torch.Tensor) and home_of(value) is not None


def is_real_host(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the host and has its bytes."""
    return home_of(tensor) is None and tensor.device.type == "cpu"


def is_real_floats(tensor: torch.Tensor) -> bool:
    """Return whether a tensor of torch's own type is on the host, has its bytes, and is of floats."""
    return type(tensor) in _PLAIN and is_real_host(tensor) and tensor.is_floating_point()


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's gradient without noting that it was read."""
    return _GRAD(tensor)


def virtual(meta: torch.Tensor, home: torch.device) -> torch.Tensor:
    """Make a virtual tensor on the storage of a meta tensor."""
    made: torch.Tensor = as_subclass(torch.Tensor, meta, home)
    if home is not CUDA and made.layout is torch.strided:
        vars(made.untyped_storage())[HOME] = home
    return made


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Make another tensor on the same storage, without autograd's history."""
    with Inside():
        detached = tensor.detach()
    return virtual(detached, home_of(tensor) or CUDA)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of torch's own type: itself, or for meta kernels one of that type on its storage."""
    if type(tensor) in _PLAIN:
        return tensor
    with Inside():
        return torch.Tensor.detach(tensor)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Make a meta tensor of the same shape, strides and dtype; of a sparse one, with the same indices and values."""
    if tensor.layout is torch.sparse_coo:
        return _sparse_meta_like(tensor)
    if tensor.layout in COMPRESSED:
        return _compressed_meta_like(tensor)
    if tensor.layout is not torch.strided:
        raise CaptureError(f"virtual device: {NO_LAYOUT.format(tensor.layout)}")
    with no_dispatch():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)


def _sparse_meta_like(tensor: torch.Tensor) -> torch.Tensor:
    with no_dispatch():
        return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
            tensor.sparse_dim(),
            tensor.dense_dim(),
            tensor.shape,
            torch.empty_like(tensor._indices(), device=META),
            torch.empty_like(tensor._values(), device=META),
            dtype=tensor.dtype,
            layout=torch.sparse_coo,
            device=META,
            is_coalesced=tensor.is_coalesced(),
        )


def _compressed_meta_like(tensor: torch.Tensor) -> torch.Tensor:
    by_rows = tensor.layout is torch.sparse_csr
    with no_dispatch():
        parts = (
            tensor.crow_indices() if by_rows else tensor.ccol_indices(),
            tensor.col_indices() if by_rows else tensor.row_indices(),
            tensor.values(),
        )
        return torch.ops.aten.sparse_compressed_tensor.comp_plain_value_size(
            *(torch.empty_like(part, device=META) for part in parts),
            tensor.shape,
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=META,
        )
