"""Never moved: storages of parameters and buffers. Autograd saves them too, but the model owns them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import final

import torch

from elbowroom.engine.storages import storage_of
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.torch_compat.core import buffers_of, parameters_of, storage_key
from elbowroom.torch_compat.subclasses import base_of


@final
class StorageSet:
    """A weak set of storages."""

    def __init__(self) -> None:
        self._by_key: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reserve the storages of these tensors; tensors without a storage are skipped."""
        for plain in (each for tensor in tensors for each in inside(tensor)):
            storage = storage_of(plain)
            if storage is not None:
                self._by_key[storage_key(storage)] = weakref.ref(storage)

    def add_module(self, module: torch.nn.Module) -> None:
        """Reserve a module's parameters and buffers; tensors that functional_call puts in their place are not."""
        self.add(p for p in parameters_of(module) if p.is_leaf)
        self.add(buffers_of(module))

    def holds(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
        """Return whether a storage is reserved; it becomes so now if the tensor is a parameter, or views one.

        An example is a parameter that fully_shard gathers: it does not exist before the first forward. Another is its
        transpose, which a product of matrices saves.
        """
        known = self._by_key.get(storage_key(storage))
        if known is not None and known() is storage:
            return True
        base = base_of(tensor)
        viewed = tensor if base is None else base
        # the type first: a Parameter's own isinstance check takes a microsecond
        made = type(viewed) is not torch.Tensor and isinstance(viewed, torch.nn.Parameter)
        if made:
            self._by_key[storage_key(storage)] = weakref.ref(storage)
        return made
