"""The tensors of the virtual device: shape, strides, dtype and a device, on a storage that has a size and no bytes.

Note: [What makes a tensor virtual]
A virtual tensor is one of torch's own, or of the user's subclass. C++ takes it for a meta tensor that has the dispatch
keys of cuda, or those of the CPU where a model is built there first. A tensor of the user's on "meta" has the keys of
meta. C++ hands device and keys on to every alias, so what `.data`, `as_subclass` or `Parameter(...)` make of a virtual
tensor is virtual as well. What such a tensor says of itself is in attributes.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast, final

import torch

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

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
HOME = "_elbowroom_home"
"""Attribute of a storage that keeps its device, where no ledger knows it."""

COMPRESSED = (torch.sparse_csr, torch.sparse_csc)
NO_LAYOUT = (
    "given a tensor of layout {}; allowed are dense ones and sparse ones of layout torch.sparse_coo, "
    "torch.sparse_csr and torch.sparse_csc; for the estimate put .to_sparse_csr() or .to_dense() before it"
)
LARGE_BYTES = 2**20
"""Float tensors of the host from this size on have no bytes: they are weights or made-up data."""

_GRAD: Callable[[torch.Tensor], Any] = cast("Any", torch.Tensor.grad).__get__
_ON_META: Callable[[torch.Tensor], bool] = torch.Tensor.is_meta.__get__  # pyright: ignore[reportAttributeAccessIssue]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Depth(threading.local):
    depth = 0


class AsMeta:
    """Context in which virtual tensors say that they are meta tensors, as C++ takes them."""

    here = _Depth()

    def __enter__(self) -> None:
        AsMeta.here.depth += 1

    def __exit__(self, *problem: object) -> None:
        AsMeta.here.depth -= 1


@final
class Inside:
    """Context in which meta kernels run, which expect meta tensors."""

    def __init__(self) -> None:
        self._kernels = MetaKernels()

    def __enter__(self) -> None:
        AsMeta.here.depth += 1
        self._kernels.__enter__()

    def __exit__(self, *problem: object) -> None:
        self._kernels.__exit__(*problem)
        AsMeta.here.depth -= 1


def home_of(tensor: torch.Tensor) -> torch.device | None:
    """Device that a virtual tensor is on; None of any other tensor."""
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
    """Device of what a tensor wraps: C++ makes a DTensor with no key of any."""
    if not wraps_others(tensor):
        return None
    return next((home for part in inside(tensor) if (home := home_of(part)) is not None), None)


def is_virtual(value: Any) -> bool:
    """Whether it is a tensor of the virtual device, or of its host where that has no bytes."""
    return isinstance(value, torch.Tensor) and home_of(value) is not None


def is_real_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on the host and has its bytes."""
    return home_of(tensor) is None and tensor.device.type == "cpu"


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its gradient, without telling anybody."""
    return _GRAD(tensor)


def virtual(meta: torch.Tensor, home: torch.device) -> torch.Tensor:
    """A virtual tensor on the storage of a meta tensor."""
    made: torch.Tensor = as_subclass(torch.Tensor, meta, home)
    if home is not CUDA:
        vars(made.untyped_storage())[HOME] = home
    return made


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same storage, without autograd's history."""
    with Inside():
        detached = tensor.detach()
    return virtual(detached, home_of(tensor) or CUDA)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """It, where it is of torch's own type; else a tensor of that type on its storage, for meta kernels only."""
    if type(tensor) in _PLAIN:
        return tensor
    with Inside():
        return torch.Tensor.detach(tensor)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same shape, strides and dtype, or of the same places and values."""
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
