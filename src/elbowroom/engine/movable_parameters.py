"""Which parameters may move: those that lie alone on a storage of their own, above the least size.

Other code must not reach the storage unseen: see Note: [Parameters away] in parameters.py for what stays.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, cast, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elbowroom.engine.away_parts import Left
from elbowroom.engine.handed_addresses import HandedAddresses, Refs, is_among
from elbowroom.engine.optimizer_parts import is_resizable
from elbowroom.engine.storages import RAW_STORAGE, alive_of, is_plain, storage_of
from elbowroom.engine.touched import Touched, plain_in, put_on_host, storages_of
from elbowroom.notices import warn
from elbowroom.torch_compat.core import holders_of, parameters_of, storage_key, version_of
from elbowroom.units import format_bytes

Tell = Callable[[int, str], None]
"""Warns that a parameter of some size, in bytes, stays, and why."""
Sharing = dict[int, list[nn.Parameter]]
"""Storage key -> the parameters on it."""


@final
class MovableParameters:
    """Storages of parameters that may move, with the parameters on each.

    Args:
        device: where they are moved from.
        min_size_bytes: smaller ones stay.
        tell: warns of one that stays.
        changed: called with the key of a storage that has other bytes now, or is not moved any more.

    Attributes:
        refs: storage key -> storage.
        addresses: those whose addresses code has.
        version_of: storage key -> versions of its parameters when it last left.
    """

    def __init__(
        self, device: torch.device, min_size_bytes: int, tell: Tell, changed: Callable[[Hashable], None]
    ) -> None:
        self.refs: Refs = {}
        self.addresses = HandedAddresses()
        self.version_of: dict[Hashable, tuple[int, ...]] = {}
        self._device = device
        self.min_size_bytes = max(1, min_size_bytes)
        self._tell = tell
        self._changed = changed
        self._owners: dict[int, list[weakref.ref[nn.Parameter]]] = {}
        self._stream_of: dict[int, object] = {}

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one that may move."""
        return is_among(self.refs, storage)

    def touched(self, values: Any, found: Touched) -> None:
        """Collect the storages among an operator's arguments that may move."""
        for tensor, storage in plain_in(values):
            if (key := storage_key(storage)) in self.refs and is_among(self.refs, storage):
                found.setdefault(key, (storage, tensor.dtype))

    # Looking for them

    def find(self) -> None:
        """Look for all parameters that may move."""
        found = self._candidates()
        for key, ref in list(self.refs.items()):
            if (storage := ref()) is None or self.addresses.stays(storage):
                self.forget(key)
        owned = Counter(id(p) for module in alive_of(nn.Module) for p in module.parameters(recurse=False))
        owned.update(id(p) for each in alive_of(torch.optim.Optimizer) for g in each.param_groups for p in g["params"])
        for key, parameters in found.items():
            storage = RAW_STORAGE(parameters[0])
            if storage in self or self.addresses.stays(storage):
                continue
            if holders_of(storage) == len(parameters) + 1 and not self._has_arrays(parameters, owned):
                self.refs[key] = weakref.ref(storage)
                self._owners[key] = [weakref.ref(each) for each in parameters]
            else:
                self._tell(storage.nbytes(), "another tensor lies on its storage")

    def _candidates(self) -> Sharing:
        """Return the parameters by their storages, but for those of modules that use them unseen."""
        scripted = _storages_in(torch.jit.ScriptModule)
        # on a GPU weights without an address are copied in each call
        recurrent = _storages_in(nn.RNNBase) if self._device.type == "cuda" else frozenset[int]()
        found: Sharing = {}
        for parameter in alive_of(nn.Parameter):
            storage = self.own_storage(parameter)
            if storage is not None and (key := storage_key(storage)) in recurrent:
                self._tell(storage.nbytes(), "cuDNN reads all weights of a recurrent layer as one block")
            elif storage is not None and key not in scripted:
                found.setdefault(key, []).append(parameter)
        return found

    def _has_arrays(self, parameters: list[nn.Parameter], owned: Mapping[int, int]) -> bool:
        """Whether an array of NumPy may lie on a frozen one: not only modules, optimizers and this list refer to it."""
        if self._device.type != "cpu":
            return False
        frozen = [n for n, each in enumerate(parameters) if not each.requires_grad]  # no name holds one meanwhile
        return any(sys.getrefcount(parameters[n]) > 2 + owned[id(parameters[n])] for n in frozen)

    def frozen_in_ram(self) -> Iterator[nn.Parameter]:
        """Yield the frozen parameters, if the device is RAM."""
        on_cpu = self._device.type == "cpu"
        return (each for each in alive_of(nn.Parameter) if on_cpu and not each.requires_grad)

    def own_storage(self, parameter: Any) -> torch.UntypedStorage | None:
        """Return the storage of a parameter that is large enough, if it can be emptied."""
        storage = self._large_storage(parameter)
        return storage if storage is not None and is_resizable(storage) else None

    def _large_storage(self, parameter: Any) -> torch.UntypedStorage | None:
        if type(parameter) is not nn.Parameter or is_lazy(parameter) or not is_plain(parameter):
            return None
        storage = storage_of(parameter) if parameter.device == self._device else None
        return storage if storage is not None and storage.nbytes() >= self.min_size_bytes else None

    def on_files(self) -> Sharing:
        """Return the parameters whose storages cannot be emptied: those may be mapped from files."""
        found: Sharing = {}
        for parameter in alive_of(nn.Parameter):
            storage = self._large_storage(parameter)
            if storage is not None and not storage.resizable():
                found.setdefault(storage_key(storage), []).append(parameter)
        return found

    # Taking one in, and leaving it out

    def taken(self, parameters: list[nn.Parameter]) -> int:
        """Let parameters that share a storage, and have it alone, be some that may move. Returns its key."""
        storage = RAW_STORAGE(parameters[0])
        key = storage_key(storage)
        self.refs[key], self._owners[key] = weakref.ref(storage), [weakref.ref(each) for each in parameters]
        self.version_of.pop(key, None)
        self._stream_of.pop(key, None)
        self._changed(key)
        return key

    def forget(self, key: int) -> None:
        """Let a storage be none that may move."""
        del self.refs[key]
        for of_key in (self._owners, self.version_of, self._stream_of):
            of_key.pop(key, None)
        self.changed(key)

    def changed(self, key: int) -> None:
        """Forget copies of a storage's bytes: it has other ones, or may get them."""
        self._changed(key)
        self.addresses.changed(key)

    # One of them

    def owners(self, key: Hashable) -> list[nn.Parameter | None]:
        """Return the parameters on a storage; None for one that is gone."""
        return [ref() for ref in self._owners.get(cast("int", key), ())]

    def versions(self, key: Hashable) -> tuple[int, ...]:
        """Return the versions of the parameters on a storage; nothing if one of them is not known."""
        owners = self.owners(key)
        found = [version_of(each) for each in owners if each is not None]
        return tuple(found) if len(found) == len(owners) else ()

    def is_frozen(self, key: Hashable) -> bool:
        """Whether no parameter on a storage is trained."""
        owners = self.owners(key)
        return bool(owners) and all(each is not None and not each.requires_grad for each in owners)

    def stay_below(self, left: Left) -> bool:
        """Give parameters that could not come back their bytes below. Returns whether some are lost."""
        size_bytes = 0
        for key, memory in left.items():
            if memory is not None:
                put_on_host(self.owners(key), memory)
                size_bytes += memory.nbytes()
        if size_bytes:
            where = (
                "are mapped from a file now, as memory has no room for all of them: the system reads their pages as "
                "they are used. The model trains on, slowly, and can be saved"
                if self._device.type == "cpu"
                else "are on the host now, as the device has no room for all of them within the budget: the model is "
                "on two devices. A state dict of it can be saved"
            )
            warn(f"elbowroom: {format_bytes(size_bytes)} of parameters {where}")
        return any(memory is None for memory in left.values())

    def is_first_stream(self, key: int, stream: object) -> bool:
        """Note that a stream uses a storage. Returns whether no other one did before."""
        return self._stream_of.setdefault(key, stream) == stream

    def has_other_stream(self, key: int, stream: object) -> bool:
        """Whether another stream than this one uses a storage."""
        return self._stream_of.get(key, stream) != stream


def _storages_in(kind: type[nn.Module]) -> frozenset[int]:
    """Return the keys of the storages of all parameters in modules of a kind."""
    found = (parameter for module in alive_of(kind) for parameter in parameters_of(module))
    return frozenset(map(storage_key, storages_of(found)))
