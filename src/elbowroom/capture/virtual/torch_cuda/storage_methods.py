"""Storage methods of the virtual device: place and size of storages, and whether they are shared or page-locked.

For C++ every virtual storage is on "meta" (Note: [What makes a tensor virtual] in tensor.py). Memory of the host is
page-locked in name only: memory that CUDA registers is not the GPU's.
"""

from __future__ import annotations

from typing import Any

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import CPU, CUDA, HOME, META, AsMeta
from elbowroom.torch_compat.core import no_dispatch, storage_key

Change = tuple[Any, str, Any]
PINNED = "_elbowroom_pinned"
"""Attribute of a storage of the host that is page-locked."""
TWIN = "_elbowroom_twin"
"""Attribute of a storage of the host with the storage without bytes that stands for it."""
NOT_PINNED = "cannot pin 'torch.cuda.{}' only dense CPU tensors can be pinned"
"""Message of torch."""

Storage: Any = torch.UntypedStorage
_device, _data_ptr = Storage.device.__get__, Storage.data_ptr
_clone, _resize, _share, _is_shared = Storage.clone, Storage.resize_, Storage.share_memory_, Storage.is_shared


def address_of(storage: torch.UntypedStorage) -> int:
    """Return a stand-in address of a storage, a GiB or more from the next: libraries compare the areas of tensors."""
    return (storage_key(storage) % 2**33) * 2**30


def without_bytes(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return the storage without bytes that stands for one of the host under a virtual tensor."""
    if _device(storage).type == "meta":
        return storage
    known = vars(storage).get(TWIN)
    if known is None:
        with no_dispatch():
            known = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META).untyped_storage()
        vars(known)[HOME] = CPU
        vars(storage)[TWIN] = known
    return known


def _said_data_ptr(self: torch.UntypedStorage) -> int:
    return address_of(self) if _device(self).type == "meta" else _data_ptr(self)


def _shared(self: torch.UntypedStorage) -> Any:
    """Run `share_memory_`: there is nothing to do on a GPU, nor without bytes."""
    return self if _device(self).type == "meta" else _share(self)


def _said_is_shared(self: torch.UntypedStorage) -> bool:
    return _device(self).type == "meta" or _is_shared(self)


def _is_pinned(self: Any, device: Any = None) -> bool:
    """Return `is_pinned` of a tensor or a storage."""
    storage = self.untyped_storage() if isinstance(self, torch.Tensor) else self
    return bool(vars(storage).get(PINNED))


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Make the same tensor of the host, page-locked in name."""
    vars(tensor.untyped_storage())[PINNED] = True
    return tensor


def _pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Run `Tensor.pin_memory`: a copy, unless it is page-locked already."""
    if self.is_cuda:
        raise RuntimeError(NOT_PINNED.format(self.type().rpartition(".")[2]))
    if _is_pinned(self):
        return self
    with torch.no_grad():
        return pinned(self.clone())


def _pin_storage(self: torch.UntypedStorage, device: Any = None) -> Any:
    """Run `UntypedStorage.pin_memory`."""
    made = self.clone()
    vars(made)[PINNED] = True
    return made


def changes(ledger: Ledger) -> list[Change]:
    """Return the changes of torch while the device is on."""

    def device(self: torch.UntypedStorage) -> torch.device:
        """Return a storage's device; inside meta kernels, "meta"."""
        found: torch.device = _device(self)
        if found.type != "meta" or AsMeta.here.depth:
            return found
        return vars(self).get(HOME) or (CUDA if ledger.knows(self) else found)

    def resize(self: torch.UntypedStorage, size: int) -> Any:
        home = device(self)
        made = _resize(self, size)
        if home == CUDA:
            vars(self)[HOME] = home
            ledger.resized(self)
        return made

    def clone(self: torch.UntypedStorage) -> Any:
        home = device(self)
        with AsMeta():
            made = _clone(self)
        if home.type != "meta":
            vars(made)[HOME] = home
        return made

    found: dict[str, Any] = {
        "clone": clone,
        "device": property(device),
        "data_ptr": _said_data_ptr,
        "resize_": resize,
        "share_memory_": _shared,
        "is_shared": _said_is_shared,
        "pin_memory": _pin_storage,
        "is_pinned": _is_pinned,
    }
    tensors = [(torch.Tensor, "pin_memory", _pin), (torch.Tensor, "is_pinned", _is_pinned)]
    return [*((Storage, name, value) for name, value in found.items()), *tensors]
