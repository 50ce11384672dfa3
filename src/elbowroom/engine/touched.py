"""What an operator uses, and what a plan carries from step to step: storages of parameters, by their keys."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from elbowroom.engine.conductor import StepPlan
from elbowroom.engine.storages import PLAIN_TYPES, RAW_STORAGE, storage_of
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.torch_compat.core import schema_of, storage_key, without_torch_function

Touched = dict[int, tuple[torch.UntypedStorage, torch.dtype]]
"""Storage key -> storage, and the dtype of the tensor on it, in the order of an operator's arguments."""


def carried_windows(known: StepPlan) -> dict[tuple[int, int], int]:
    """Return by (use, place in it) the windows of parameters that go on in the next step."""
    return {
        (use, place): slot.n
        for use, slots in enumerate(known.schedule.uses)
        for place, slot in enumerate(slots)
        if slot.n is not None and slot.n in known.schedule.carried
    }


def by_key(refs: Iterable[weakref.ref[torch.UntypedStorage]]) -> Touched:
    """Return the storages that are still there, each with one reference to it."""
    return {storage_key(storage): (storage, torch.uint8) for ref in refs if (storage := ref()) is not None}


def storages_of(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of tensors, of those that have one."""
    found: Callable[[torch.Tensor], torch.UntypedStorage | None] = storage_of
    return (storage for storage in map(found, tensors) if storage is not None)


def plain_in(values: Iterable[Any]) -> Iterator[tuple[torch.Tensor, torch.UntypedStorage]]:
    """Yield the plain tensors among an operator's arguments that have a storage, and this.

    Those in lists and inside subclasses are among them.
    """
    for value in values:
        if type(value) in PLAIN_TYPES:
            try:
                storage = RAW_STORAGE(value)
            except (RuntimeError, NotImplementedError):  # torch's two ways to say that there is none
                continue
            yield value, storage
        elif isinstance(value, torch.Tensor):
            with without_torch_function():
                found = [each for each in inside(value) if type(each) in PLAIN_TYPES]
            yield from plain_in(found)
        elif isinstance(value, (list, tuple)):
            yield from plain_in(value)  # pyright: ignore[reportUnknownArgumentType]


@cache
def writes(op: Any) -> bool:
    """Tell whether an operator writes to an argument."""
    return any(each.alias_info is not None and each.alias_info.is_write for each in schema_of(op).arguments)


@cache
def is_torchs_own(op: Any) -> bool:
    """Tell whether an operator is one of torch's own, which say truly what they write to."""
    return str(schema_of(op).name).startswith("aten::")


def put_on_host(parameters: Iterable[nn.Parameter | None], memory: torch.UntypedStorage, first: int = 0) -> None:
    """Give parameters this memory in RAM, which has bytes of the storage that they share, from the `first` one on."""
    for parameter in (each for each in parameters if each is not None):
        begin = parameter.storage_offset() - first // parameter.element_size()
        shape = begin, parameter.size(), parameter.stride()
        parameter.data = torch.empty(0, dtype=parameter.dtype, device="cpu").set_(memory, *shape)


def moves_gradients(known: StepPlan | None) -> bool:
    """Tell whether code may get gradients without their bytes in steps of a plan."""
    return known is not None and any(slot.n is not None for slot in known.schedule.gradients)
