"""Pickling: virtual tensors in files: pickle, torch.save and torch.load keep everything of a tensor but its bytes.

A storage is written once, as its size and its device, for all tensors that share it. Loading makes a new storage on
that device, or on that of `map_location`. On the GPU that is an allocation, as in a real run. Queues and pipes between
processes do the same: what has no bytes cannot be shared, and real tensors are shared as ever.
"""

from __future__ import annotations

import functools
import pickle
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self, final

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import CPU, CUDA, META, home_of, virtual
from elbowroom.capture.virtual.wrappers import is_wrapper
from elbowroom.torch_compat.core import REDUCE_TENSOR, no_dispatch, reduce_tensor, set_storage, storage_key
from elbowroom.torch_compat.device_modules import rebuild_change, rebuild_tensor, untyped

_place: ContextVar[Any] = ContextVar("map_location", default=None)
_ledgers: list[Ledger] = []
"""The ledger of the device that is on."""


@final
class SavedStorage:
    """A storage as it is pickled; one object for each storage, so that sharing is kept.

    Attributes:
        size_bytes: its size.
        home: its device.
        value: its bytes, if they are certain.
        source: a tensor on it: `copy.copy` rebuilds a tensor from its reduced form without writing it.
    """

    def __init__(self, size_bytes: int, home: str, value: torch.Tensor | None, source: torch.Tensor) -> None:
        self.size_bytes, self.home, self.value, self.source = size_bytes, home, value, source

    def __reduce__(self) -> Any:
        return loaded_storage, (self.size_bytes, self.home, self.value)


_saved: weakref.WeakValueDictionary[int, SavedStorage] = weakref.WeakValueDictionary()


def _saved_storage(tensor: torch.Tensor, home: torch.device) -> SavedStorage:
    storage = tensor.untyped_storage()
    known = _saved.get(storage_key(storage))
    if known is None or (known.size_bytes, known.home) != (storage.nbytes(), str(home)):
        made = SavedStorage(storage.nbytes(), str(home), _value_of(tensor), tensor)
        known = _saved[storage_key(storage)] = made
    return known


def _value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    values = KnownValues.current
    real = values.of(tensor) if values is not None and values.is_certain(tensor) else None
    if real is None:
        return None
    made = torch.empty(0, dtype=torch.uint8, device=CPU)
    set_storage(made, real.untyped_storage(), 0, (real.untyped_storage().nbytes(),), (1,))
    return made


def _reduced(tensor: torch.Tensor, protocol: int) -> Any:
    """Reduce a tensor for pickle."""
    home = home_of(tensor)
    if home is None or is_wrapper(tensor) or tensor.layout is not torch.strided:
        return reduce_tensor(tensor, protocol)
    storage = _saved_storage(tensor, home)
    layout = (int(tensor.storage_offset()), tuple(tensor.size()), tensor.stride())
    return loaded_tensor, (storage, tensor.dtype, *layout, tensor.requires_grad)


@final
class LoadedStorage:
    """A loaded storage: a tensor with all of its bytes, and its device."""

    def __init__(self, size_bytes: int, home: torch.device) -> None:
        with no_dispatch():
            self.bytes = torch.empty(size_bytes, dtype=torch.uint8, device=META)
        self.home = home


def loaded_storage(size_bytes: int, home: str, value: torch.Tensor | None = None) -> LoadedStorage:
    """Make a storage again, on its device or on that of `map_location`."""
    made = LoadedStorage(size_bytes, mapped(size_bytes, home))
    if made.home.type == "meta":
        return made
    bytes_ = virtual(made.bytes, made.home)
    if made.home.type == "cuda" and _ledgers:
        _ledgers[-1].alloc(bytes_)
    if value is not None and KnownValues.current is not None:
        real = KnownValues.current.of(value)  # `map_location` may have put the value on the GPU
        if real is not None:
            KnownValues.current.alias(bytes_, real)
    return made


def loaded_tensor(
    storage: LoadedStorage | SavedStorage,
    dtype: torch.dtype,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
) -> torch.Tensor:
    """Make a tensor on a loaded storage, or on the one that was to be saved."""
    bytes_ = storage.source if isinstance(storage, SavedStorage) else storage.bytes
    home = torch.device(storage.home)
    with no_dispatch(), torch.no_grad():
        made = torch.empty(0, dtype=dtype, device=META)
        set_storage(made, bytes_.untyped_storage(), offset, tuple(size), tuple(stride))
    found = made if home.type == "meta" else virtual(made, home)
    return found.requires_grad_() if requires_grad else found


@final
class _Bytes:
    """A storage on its way to a device, as functions given for `map_location` see it."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self.size_bytes = size_bytes
        self.device = device

    def nbytes(self) -> int:
        return self.size_bytes

    size = __len__ = nbytes

    def to(self, device: Any = None, **_: Any) -> Self:
        return type(self)(self.size_bytes, _device(self.device if device is None else device))

    def cuda(self, device: Any = None, **_: Any) -> Self:
        return self.to(CUDA if device is None else device)

    def cpu(self) -> Self:
        return self.to("cpu")


def _device(what: Any) -> torch.device:
    device = torch.device("cuda", what) if isinstance(what, int) else torch.device(what)
    return CUDA if device.type == "cuda" and device.index is None else device


def mapped(size_bytes: int, home: str) -> torch.device:
    """Return the device of a loaded storage, by `map_location` of the present load."""
    place = _place.get()
    if place is None:
        return _device(home)
    if isinstance(place, dict):
        return _device(place.get(home, home))
    if callable(place):
        found = place(_Bytes(size_bytes, torch.device("cpu")), home)
        return _device(home if found is None else getattr(found, "device", home))
    return _device(place)


WANTED = "_elbowroom_wanted"
"""Attribute of a storage with bytes that is wanted on the GPU: tensors on it are made there."""


def _to(self: torch.UntypedStorage, *args: Any, **how: Any) -> Any:
    """`UntypedStorage.to`."""
    device = how.get("device", args[0] if args else None)
    if device is None or _device(device).type != "cuda":
        return _storage_to(self, *args, **how)
    vars(self)[WANTED] = True
    return self


def _to_cuda(self: torch.UntypedStorage, *_args: Any, **_how: Any) -> Any:
    return _to(self, device=CUDA)


def _rebuilt(storage: Any, *layout: Any) -> torch.Tensor:
    made = rebuild_tensor(storage, *layout)
    return made.to(CUDA) if WANTED in vars(untyped(storage)) else made


_storage_to: Any = torch.UntypedStorage.to


def _sent() -> dict[type, Callable[[Any], Any]]:
    """Return how objects are pickled for another process: torch would share a storage that is not there."""
    known: dict[type, Callable[[Any], Any]] = vars(ForkingPickler)["_extra_reducers"]

    def of_tensors(share: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda tensor: share(tensor) if home_of(tensor) is None else _reduced(tensor, pickle.HIGHEST_PROTOCOL)

    return {kind: of_tensors(known[kind]) if issubclass(kind, torch.Tensor) else known[kind] for kind in known}


def changes(ledger: Ledger) -> list[tuple[Any, str, Any]]:
    """Return the changes of torch while the device is on."""
    load = torch.load
    _ledgers[:] = [ledger]
    torch.serialization.add_safe_globals([loaded_storage, loaded_tensor])

    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **how: Any) -> Any:
        before = _place.set(map_location)
        try:
            return load(f, map_location, *args, **how)
        finally:
            _place.reset(before)

    return [
        (torch.UntypedStorage, "to", _to),
        (torch.UntypedStorage, "cuda", _to_cuda),
        rebuild_change(_rebuilt),
        (torch.Tensor, REDUCE_TENSOR, _reduced),
        (ForkingPickler, "_extra_reducers", _sent()),
        (torch, "load", loaded),
        (torch.serialization, "load", loaded),
    ]
