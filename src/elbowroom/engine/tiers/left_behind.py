"""Tier of a process that was forked from the training: what is away there never comes back here.

Note: [Forked]
A forked process, such as a worker that reads data, has the objects of its parent at their addresses. It has no thread
that copies. The spill file is its parent's too, which goes on to write to it. A CUDA device cannot be used at
all. So a run does nothing in a forked process: no step begins, nothing moves. What was on the device at the fork can
be used. What was away cannot, and using it is an error that says so.
"""

from __future__ import annotations

from typing import NoReturn, final

import torch

from elbowroom.engine.tiers.base import LowerTier, Slot, Transfer
from elbowroom.errors import TierError
from elbowroom.machine import TierName


@final
class LeftBehind(LowerTier):
    """Stands in for the tier of the parent.

    Args:
        name: name of that tier.
    """

    def __init__(self, name: TierName) -> None:
        self.name: TierName = name

    def refuse(self) -> NoReturn:
        """Raise the error of a process that needs what is away."""
        raise TierError(
            "a process that was forked from the training uses a tensor whose bytes are away; they come back in the "
            "training's own process alone; read it before the process is forked, or start the process by 'spawn' "
            "(torch.multiprocessing.set_start_method) and send it the tensor",
            tier=self.name,
        )

    def reserve(self, size_bytes: int, to: TierName | None = None) -> Slot:  # noqa: ARG002 - nothing leaves
        self.refuse()

    def release(self, slot: Slot) -> None:
        """Do nothing: the slot is the parent's."""

    def write(self, storage: torch.UntypedStorage, slot: Slot) -> Transfer:  # noqa: ARG002 - nothing leaves
        self.refuse()

    def read(self, slot: Slot) -> tuple[torch.UntypedStorage, Transfer]:  # noqa: ARG002 - nothing comes back
        self.refuse()

    def refill(self, slot: Slot, storage: torch.UntypedStorage) -> Transfer:  # noqa: ARG002 - nothing comes back
        self.refuse()

    @property
    def held_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the resources are the parent's."""
