"""Private symbols of `torch.save`, and of the pickling of tensors. Checked on 2.11.0 and 2.13.0.

`torch.save` pickles first: `Tensor._reduce_ex_internal` hands over each tensor's storage, of which only the size is
read. Then it writes one storage after the other: those of a device by way of `UntypedStorage.cpu`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch.utils.serialization import config

_PLACES: tuple[tuple[Any, str], ...] = (torch.serialization, "_save"), (torch.Tensor, "_reduce_ex_internal")


@final
class SavedFiles:
    """Lets `torch.save` ask for the bytes of one storage at a time, from now on until `close`.

    Args:
        may_wait: tells as a save begins whether bytes may be away until they are written.
        size_of: returns the bytes of a storage that is away; None for any other one.
        there: returns a context in which the bytes of a storage are there.
    """

    def __init__(
        self,
        may_wait: Callable[[], bool],
        size_of: Callable[[torch.UntypedStorage], int | None],
        there: Callable[[torch.UntypedStorage], AbstractContextManager[None]],
    ) -> None:
        self._may_wait, self._size_of, self._there = may_wait, size_of, there
        self._thread = 0
        self._in_tensor = False
        self._before = [getattr(owner, name) for owner, name in _PLACES]
        self._ours = self._saving(self._before[0]), self._reducing(self._before[1])
        for (owner, name), function in zip(_PLACES, self._ours, strict=True):
            setattr(owner, name, function)

    @property
    def in_tensor(self) -> bool:
        """Whether this thread pickles a tensor for a save that asks for the bytes later."""
        return self._in_tensor and self._thread == threading.get_ident()

    def _saving(self, save: Any) -> Any:
        def saving(obj: Any, zip_file: Any, *args: Any) -> Any:
            if self._thread or config.save.use_pinned_memory_for_d2h or not self._may_wait():
                return save(obj, zip_file, *args)
            self._thread = threading.get_ident()
            storages: Any = torch.UntypedStorage
            storages.nbytes, storages.cpu = self._sized(storages.nbytes), self._copied(storages.cpu)
            try:
                return save(obj, _Records(zip_file, self._there), *args)
            finally:
                del storages.nbytes, storages.cpu  # those of its base classes are there again
                self._thread = 0

        return saving

    def _reducing(self, reduce: Any) -> Any:
        def reducing(tensor: torch.Tensor, protocol: int) -> Any:
            if self._thread != threading.get_ident():
                return reduce(tensor, protocol)
            before, self._in_tensor = self._in_tensor, True
            try:
                return reduce(tensor, protocol)
            finally:
                self._in_tensor = before

        return reducing

    def _sized(self, nbytes: Callable[[torch.UntypedStorage], int]) -> Callable[[torch.UntypedStorage], int]:
        def sized(storage: torch.UntypedStorage) -> int:
            return nbytes(storage) or self._size_of(storage) or 0

        return sized

    def _copied(self, cpu: Any) -> Any:
        def copied(storage: torch.UntypedStorage) -> Any:
            with self._there(storage):
                return cpu(storage)

        return copied

    def close(self) -> None:
        """Restore torch's own functions."""
        for (owner, name), ours, before in zip(_PLACES, self._ours, self._before, strict=True):
            if getattr(owner, name) is ours:  # else others have wrapped it
                setattr(owner, name, before)


@final
class _Records:
    """Stands before the writer of a file, and has a storage there while that writes it."""

    def __init__(self, writer: Any, there: Callable[[torch.UntypedStorage], AbstractContextManager[None]]) -> None:
        self._writer, self._there = writer, there

    def write_record(self, name: str, record: Any, size_bytes: int) -> None:
        if isinstance(record, torch.UntypedStorage):
            with self._there(record):
                self._writer.write_record(name, record, size_bytes)
        else:
            self._writer.write_record(name, record, size_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
