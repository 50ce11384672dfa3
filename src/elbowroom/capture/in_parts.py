"""Steps of optimizers in parts while something is captured: as a run carries them out in which states may move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.engine.optimizer_hooks import Stepping
from elbowroom.engine.optimizer_parts import AtPart, InTurn


@final
class PartsWatch:
    """Has the steps of all optimizers that are met carried out in parts, until `close`; their states stay.

    Args:
        min_size_bytes: states smaller than this never move; None carries steps out as ever.
        begins: called with the optimizer and the part before each.
        ends: called with them after it.
    """

    def __init__(self, min_size_bytes: int | None, begins: AtPart, ends: AtPart) -> None:
        self._min_size_bytes = max(1, min_size_bytes or 0)
        self._in_turn = InTurn(begins, ends)
        self._stepping = None if min_size_bytes is None else Stepping(self._step, None)

    def meets(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if self._stepping is not None:
            self._stepping.meets(optimizer)

    def close(self) -> None:
        """Steps are carried out as ever from now on."""
        if self._stepping is not None:
            self._stepping.close()

    def _step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._in_turn.step(optimizer, step, args, kwargs, self._min_size_bytes)
