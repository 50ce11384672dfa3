"""Steps of optimizers in parts while something is captured: as a run carries them out in which states may move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.runtime.parts import Portion, in_turn, portions_of
from elbowroom.runtime.stepping import Stepping


@final
class PartsWatch:
    """Has the steps of all optimizers that are met carried out in parts, until `close`; their states stay.

    Args:
        min_size_bytes: states smaller than this never move; None carries steps out as ever.
        begins: called with the optimizer and the part before each.
        ends: called with them after it.
    """

    def __init__(
        self,
        min_size_bytes: int | None,
        begins: Callable[[torch.optim.Optimizer, Portion], None],
        ends: Callable[[torch.optim.Optimizer, Portion], None],
    ) -> None:
        self._min_size_bytes = max(1, min_size_bytes or 0)
        self._begins, self._ends = begins, ends
        self._stepping = None if min_size_bytes is None else Stepping(self._step, None)
        self._inside = False

    def meets(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if self._stepping is not None:
            self._stepping.meets(optimizer)

    def close(self) -> None:
        """Steps are carried out as ever from now on."""
        if self._stepping is not None:
            self._stepping.close()

    def _step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside or torch.compiler.is_compiling():
            return step(*args, **kwargs)
        portions = portions_of(optimizer, step, args, kwargs, self._min_size_bytes)
        if not portions:
            return step(*args, **kwargs)
        self._inside = True
        try:
            return in_turn(optimizer, portions, lambda: step(*args, **kwargs), self._begins, self._ends)
        finally:
            self._inside = False
