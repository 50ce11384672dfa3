"""Storages that are never moved: parameters and buffers. Autograd saves them too, but somebody else owns them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import final

import torch

from elbowroom.engine.storages import storage_of
from elbowroom.engine.wrapped_tensors import inside
from elbowroom.torch_compat.core import storage_key
from elbowroom.torch_compat.subclasses import base_of


@final
class StorageSet:
    """A weak set of storages."""

    def __init__(self) -> None:
        self._by_key: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reserve the storages of these tensors; those without one are passed over."""
        for plain in (each for tensor in tensors for each in inside(tensor)):
            storage = storage_of(plain)
            if storage is not None:
                self._by_key[storage_key(storage)] = weakref.ref(storage)

    def add_module(self, module: torch.nn.Module) -> None:
        """Reserve a module's parameters and buffers; what functional_call puts in their place is made by the step."""
        self.add(p for p in module.parameters() if p.is_leaf)
        self.add(module.buffers())

    def holds(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
        """Whether this very storage is reserved, or is from now on: the tensor is a parameter, or views one.

        Such as one that fully_shard gathers, which there is none of before the first forward, or its transpose, which a
        product of matrices saves.
        """
        known = self._by_key.get(storage_key(storage))
        if known is not None and known() is storage:
            return True
        base = base_of(tensor)
        viewed = tensor if base is None else base
        # by its type first: a Parameter's own way to tell takes a microsecond
        made = type(viewed) is not torch.Tensor and isinstance(viewed, torch.nn.Parameter)
        if made:
            self._by_key[storage_key(storage)] = weakref.ref(storage)
        return made
