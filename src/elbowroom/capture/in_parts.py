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
        starts: called with an optimizer where its step begins: see `Stepping`.
        min_size_bytes: smaller states never move; None carries steps out whole.
        begins: called with the optimizer and the part before each part.
        ends: called with them after it.
    """

    def __init__(
        self,
        starts: Callable[[torch.optim.Optimizer], None],
        min_size_bytes: int | None,
        begins: AtPart,
        ends: AtPart,
    ) -> None:
        self._min_size_bytes = None if min_size_bytes is None else max(1, min_size_bytes)
        self._in_turn = InTurn(begins, ends)
        self._stepping = Stepping(starts, self._step, None)

    def meets(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Note an optimizer that is called with these arguments, the optimizer first."""
        self._stepping.meets(optimizer, args, kwargs)

    def close(self) -> None:
        """Carry steps out whole from now on."""
        self._stepping.close()

    def _step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._in_turn.step(optimizer, step, args, kwargs, self._min_size_bytes)
