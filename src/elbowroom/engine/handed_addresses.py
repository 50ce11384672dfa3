"""Addresses of parameters that code was given, and for how long a parameter has to stay where it is for that.

Note: [Addresses]
A parameter whose address code has may be read or written there unseen, so it does not leave.

- What `data_ptr` and DLPack hand out may be kept as a number. The parameter stays from then on.
- An array of `numpy()` is a tensor to torch, which lies on the storage too. Once no tensor but the parameters lies
  there, the array is gone. This is looked at before each step. Torch does not empty a storage on which an array lay, so
  the parameter gets a new one.
- Modules that write files (`READERS`) ask for addresses, read what is there, and forget them. Between steps they get
  the address of a parameter that is away in a mapping of the spill file, so that the system reads the pages as they are
  written to the other file. A parameter that is in RAM stays until the next step begins. If a thread is still in such a
  module, it stays longer.
- On a GPU these modules read nothing there: addresses tell them which tensors share a storage, and an operator copies
  the bytes to the host. So for a parameter that is away they get a number of its own, in place of an address
  (`ReadStorage`). The number stays the same until the next step begins.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from elbowroom.engine.storages import RAW_STORAGE, alive_of, is_plain, storage_of
from elbowroom.torch_compat.core import holders_of, storage_key

READERS = frozenset(
    (
        "safetensors.torch",
        "transformers.modeling_utils",
        "transformers.pytorch_utils",
        "huggingface_hub.serialization._torch",
    )
)
"""Modules that read the bytes at addresses of parameters and keep no address beyond the call.

Checked in the source of safetensors 0.8.0, transformers 5.24.0 and huggingface_hub 2.4.0. accelerate keeps addresses.
"""
Refs = dict[int, weakref.ref[torch.UntypedStorage]]
"""Storage key -> storage."""


def is_among(refs: Refs, storage: torch.UntypedStorage) -> bool:
    """Tell whether a storage is one of these. Another one may have got the key of one that is gone."""
    ref = refs.get(storage_key(storage))
    return ref is not None and ref() is storage


@final
class ReadStorage:
    """Storage of a parameter on a GPU as a reader gets it: with a number in place of its address.

    The number is that of the storage's object in RAM, so no address of memory of the device is the same.

    Args:
        key: the storage's key.
        size_bytes: its size.
        real: returns the storage itself, with its bytes; called when anything else is asked for.
    """

    def __init__(self, key: int, size_bytes: int, real: Callable[[], torch.UntypedStorage]) -> None:
        self._key, self._size_bytes, self._real = key, size_bytes, real

    def data_ptr(self) -> int:
        """Return the number."""
        return self._key

    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self._size_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)


Memory = torch.UntypedStorage | ReadStorage
"""What a reader is given."""


@final
class HandedAddresses:
    """Storages of parameters whose addresses code has.

    Attributes:
        mapped: storage key -> memory with the bytes of a parameter, which a reader was given.
        named: storage key -> storage of a parameter on a GPU, as a reader was given it.
    """

    def __init__(self) -> None:
        self.mapped: dict[int, torch.UntypedStorage] = {}
        self.named: dict[int, ReadStorage] = {}
        self._for_good: Refs = {}
        self._arrays: Refs = {}
        self._read: Refs = {}

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Let a storage stay from now on."""
        self._for_good[storage_key(storage)] = weakref.ref(storage)

    def array(self, storage: torch.UntypedStorage) -> None:
        """Let a storage stay for as long as an array may lie on it."""
        if storage.resizable():
            self._arrays[storage_key(storage)] = weakref.ref(storage)
        elif not is_among(self._arrays, storage):  # it is an array's own
            self.keep(storage)

    def read(self, storage: torch.UntypedStorage) -> None:
        """Let a storage stay until readers are done."""
        self._read[storage_key(storage)] = weakref.ref(storage)

    def stays(self, storage: torch.UntypedStorage) -> bool:
        """Whether code may have the address of a storage."""
        return any(is_among(refs, storage) for refs in (self._for_good, self._arrays, self._read))

    def stays_for_good(self, storage: torch.UntypedStorage) -> bool:
        """Whether code may have the address of a storage for as long as it exists."""
        return is_among(self._for_good, storage)

    def changed(self, key: int) -> None:
        """Forget the memory that a reader was given: the parameter has other bytes now."""
        self.mapped.pop(key, None)

    def step_comes(self) -> list[list[nn.Parameter]]:
        """Let storages go that readers are done with, and those on which no array lies any more.

        Returns for each of the latter the parameters on it. Takes tens of milliseconds if there may be any.
        """
        if (self._read or self.mapped or self.named) and not _is_read():
            self._read.clear()
            self.mapped.clear()
            self.named.clear()
        self._arrays = {key: ref for key, ref in self._arrays.items() if ref() is not None}
        if not self._arrays:
            return []
        on: dict[int, list[nn.Parameter]] = {}
        for parameter in alive_of(nn.Parameter):
            storage = storage_of(parameter) if is_plain(parameter) else None
            if storage is not None and is_among(self._arrays, storage):
                on.setdefault(storage_key(storage), []).append(parameter)
        parameter = storage = None
        ended = {key: on[key] for key in on if holders_of(RAW_STORAGE(on[key][0])) == len(on[key]) + 1}
        self._arrays = {key: ref for key, ref in self._arrays.items() if key in on and key not in ended}
        return list(ended.values())


def is_reader(frame_names: dict[str, object]) -> bool:
    """Tell whether code with these global names is that of a module among `READERS`."""
    return frame_names.get("__name__") in READERS


def _is_read() -> bool:
    """Whether a thread is in a reader now."""
    for frame in sys._current_frames().values():  # noqa: SLF001 - documented, for debuggers
        each = frame
        while each is not None:
            if is_reader(each.f_globals):
                return True
            each = each.f_back
    return False
