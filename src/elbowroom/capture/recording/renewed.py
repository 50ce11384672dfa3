"""Renewed inputs: tensors that a script makes anew before each step, such as a batch that comes to the device.

The new tensor is made while the old one is still there, so the two take turns at two places of the allocator. No
recorded step shows that, as the old one is gone when the recording begins. Two recordings show it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import final

import torch

from elbowroom.engine.storages import storage_of


@final
class Renewed:
    """Storages of a device at the begin of the last recording.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: list[tuple[weakref.ref[torch.UntypedStorage], int]] | None = None

    def since(self, tensors: Sequence[torch.Tensor]) -> list[torch.UntypedStorage]:
        """Return the storages that took the place of others of the same size since the last call; at first, all.

        Args:
            tensors: all tensors that Python can reach.
        """
        found = [storage_of(each) for each in tensors if each.device == self._device]
        now = {id(each): each for each in found if each is not None and each.nbytes()}
        before, self._before = self._before, [(weakref.ref(each), each.nbytes()) for each in now.values()]
        if before is None:
            return list(now.values())
        earlier = {id(each) for ref, _ in before if (each := ref()) is not None}
        gone = Counter(size for ref, size in before if ref() is None)
        renewed: list[torch.UntypedStorage] = []
        for each in now.values():
            if id(each) not in earlier and gone[each.nbytes()]:
                gone[each.nbytes()] -= 1
                renewed.append(each)
        return renewed
