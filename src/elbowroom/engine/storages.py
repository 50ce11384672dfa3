"""Storages behind tensors, and live objects of this process: tensors, parameters, modules, optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, final

import torch
from torch.nn.parameter import is_lazy

from elbowroom.torch_compat import live_objects
from elbowroom.torch_compat.subclasses import made_by_a_transform, stands_for_zeros, transform_now

CPU = torch.device("cpu")
RAW_STORAGE = torch.Tensor.untyped_storage
"""Returns the storage of a tensor, and reports it to nobody: see engine/raw_reads.py."""
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
"""Types of plain tensors; all others are subclasses, see tensor_subclasses.py."""


def alive_of(*types: type[Any]) -> list[Any]:
    """Return all objects of these types and of those under them. Takes tens of milliseconds."""
    kinds, found = set(types), list(types)
    while found:
        under = [kind for kind in type.__subclasses__(found.pop()) if kind not in kinds]
        kinds.update(under)
        found.extend(under)
    return live_objects.of_types(kinds)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None without bytes: sparse, functional, fake, wrapper and lazy tensors."""
    if is_lazy(tensor):
        return None
    try:
        storage = RAW_STORAGE(tensor)
        if storage.device.type == "meta":  # fake tensors too, which warn when they are asked for an address
            return None
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # torch's two ways to say that there is none
        return None
    return storage


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as records have it, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether storage, offset, shape and stride say all about a tensor."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
        and not (stands_for_zeros(tensor) or made_by_a_transform(tensor))
        and transform_now() is None
    )


@final
class Blanks(dict[torch.dtype, torch.Tensor]):
    """dtype -> a tensor without bytes on a device, made at the first request."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, dtype: torch.dtype) -> torch.Tensor:
        made = self[dtype] = torch.empty(0, dtype=dtype, device=self._device)
        return made


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the result of an op, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from tensors_of(each)


def reachable_parameters() -> list[torch.Tensor]:
    """Return every nn.Parameter that Python knows of, and the tensors that its optimizers update."""
    return _parameters_among(alive_of(torch.nn.Parameter, torch.optim.Optimizer))


def reachable() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return all tensors that Python knows of, and all parameters as in `reachable_parameters`, in one search."""
    found = alive_of(torch.Tensor, torch.optim.Optimizer)
    tensors = [each for each in found if issubclass(type(each), torch.Tensor)]
    return tensors, _parameters_among(found)


def _parameters_among(found: list[Any]) -> list[torch.Tensor]:
    optimizers = [each for each in found if issubclass(type(each), torch.optim.Optimizer)]
    updated = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return [*(each for each in found if issubclass(type(each), torch.nn.Parameter)), *updated]
