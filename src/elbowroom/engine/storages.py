"""The storage behind a tensor, where it has one, and what of a tensor its storage does not say."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any, final

import torch
from torch.nn.parameter import is_lazy

from elbowroom.torch_compat.subclasses import made_by_a_transform, stands_for_zeros, transform_now

CPU = torch.device("cpu")
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
"""All others are subclasses; see tensor_subclasses.py."""


def alive_of(*types: type[Any]) -> list[Any]:
    """All objects of these types that the garbage collector knows of; `isinstance` would wake lazy ones up.

    It knows of some hundred thousand, so that little is asked of each, and this takes tens of milliseconds.
    """
    kinds, found = set(types), list(types)
    while found:
        under = [kind for kind in type.__subclasses__(found.pop()) if kind not in kinds]
        kinds.update(under)
        found.extend(under)
    return [each for each in gc.get_objects() if type(each) in kinds]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None for sparse, functional, fake, wrapper and not yet shaped ones, without bytes."""
    if is_lazy(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":  # so have fake tensors, which warn when they are asked for an address
            return None
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # torch's two ways to say that there is none
        return None
    return storage


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """As records have it, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether storage, offset, shape and stride say all about a tensor."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
        and not (stands_for_zeros(tensor) or made_by_a_transform(tensor))
        and transform_now() is None
    )


@final
class Blanks(dict[torch.dtype, torch.Tensor]):
    """By dtype: a tensor without bytes on a device, made when it is first asked for."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __missing__(self, dtype: torch.dtype) -> torch.Tensor:
        made = self[dtype] = torch.empty(0, dtype=dtype, device=self._device)
        return made


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what an op returned, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from tensors_of(each)


def reachable_parameters() -> list[torch.Tensor]:
    """Every nn.Parameter Python knows of, and what its optimizers update."""
    return _parameters_among(alive_of(torch.nn.Parameter, torch.optim.Optimizer))


def reachable() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors and parameters as `reachable_tensors` and `reachable_parameters` have them, looked for once."""
    found = alive_of(torch.Tensor, torch.optim.Optimizer)
    tensors = [each for each in found if issubclass(type(each), torch.Tensor)]
    return tensors, _parameters_among(found)


def _parameters_among(found: list[Any]) -> list[torch.Tensor]:
    optimizers = [each for each in found if issubclass(type(each), torch.optim.Optimizer)]
    updated = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return [*(each for each in found if issubclass(type(each), torch.nn.Parameter)), *updated]
