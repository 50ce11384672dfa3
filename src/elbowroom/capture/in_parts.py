"""In parts: carry out optimizers' steps in parts during a capture, as a run does in which states may move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.engine.optimizer_hooks import Stepping
from elbowroom.engine.optimizer_parts import AtPart, InTurn


@final
class PartsWatch:
    """Carries out the steps of all optimizers in parts until `close`; their states stay.

    Args:
        min_size_bytes: smaller states never move; None carries steps out whole.
        begins: called with the optimizer and the part before each part.
        ends: called with them after it.
    """

    def __init__(self, min_size_bytes: int | None, begins: AtPart, ends: AtPart) -> None:
        self._min_size_bytes = max(1, min_size_bytes or 0)
        self._in_turn = InTurn(begins, ends)
        self._stepping = None if min_size_bytes is None else Stepping(self._step, None)

    def meets(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer that is about to step."""
        if self._stepping is not None:
            self._stepping.meets(optimizer)

    def close(self) -> None:
        """Carry steps out whole from now on."""
        if self._stepping is not None:
            self._stepping.close()

    def _step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._in_turn.step(optimizer, step, args, kwargs, self._min_size_bytes)
