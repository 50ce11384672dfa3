"""Saving: `torch.save` of parameters that are away, each of which is on the device only while it is written.

Note: [Saving]
Between two steps `torch.save` would bring all parameters to the device, as it takes their storages. So it gets them as
they are, and their sizes (saved_files.py). Each one comes back when its bytes are written to the file, and leaves again
at once. Nothing else runs meanwhile, so the tier's copy is right still, and the way out costs nothing. Inside a step,
and in another thread, all come back as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import final

import torch

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.executor import Executor
from elbowroom.engine.optimizer_parts import Found
from elbowroom.errors import TierFull
from elbowroom.torch_compat.core import storage_key
from elbowroom.torch_compat.saved_files import SavedFiles
from elbowroom.units import NONE


@final
class Saving:
    """Sees `torch.save` from now on until `close`.

    Args:
        away: what is away, by the keys of storages.
        executor: moves it.
        conductor: knows the step.
        may_wait: tells as a save begins whether bytes may be away until they are written.
        begins: called before a storage comes back.
    """

    def __init__(
        self,
        away: AwayParts,
        executor: Executor,
        conductor: Conductor,
        may_wait: Callable[[], bool],
        begins: Callable[[], None],
    ) -> None:
        self._away, self._executor, self._conductor = away, executor, conductor
        self._begins = begins
        self._files = SavedFiles(may_wait, self._size_of, self._there)

    @property
    def in_tensor(self) -> bool:
        """Whether a tensor is pickled in this thread whose bytes are asked for later."""
        return self._files.in_tensor

    def _size_of(self, storage: torch.UntypedStorage) -> int | None:
        entry = self._away.entries.get(storage_key(storage))
        return entry.size_bytes if entry is not None and entry.alive() is storage else None

    @contextmanager
    def _there(self, storage: torch.UntypedStorage) -> Iterator[None]:
        if self._size_of(storage) is None:
            yield
            return
        key = storage_key(storage)
        with self._conductor.aside():
            self._begins()
            self._away.arrive(key, keeps=True)
            try:
                yield
            finally:
                found = Found(storage, torch.uint8, storage.nbytes(), held=False)
                with suppress(TierFull):  # then it stays
                    self._away.leave(key, found, NONE, None)
                self._executor.settle()

    def close(self) -> None:
        """Leave `torch.save` as it is."""
        self._files.close()
