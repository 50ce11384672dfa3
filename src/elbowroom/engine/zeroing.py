"""Zeroing: calls of `zero_grad` that free gradients without a look at their bytes.

`Optimizer.zero_grad` and `Module.zero_grad` look at each gradient before they set it to None. A gradient that is away
need not come back for that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn


@final
class Zeroing:
    """Watch of all calls of `zero_grad` in this process, until `close`.

    Attributes:
        on: whether such a call is freeing gradients now.
    """

    def __init__(self) -> None:
        self.on = False
        self._before: list[tuple[Any, Any, Any]] = []

    def open(self) -> None:
        """Watch from now on."""
        if not self._before:
            owners: tuple[Any, ...] = (torch.optim.Optimizer, nn.Module)
            for owner in owners:
                method = vars(owner)["zero_grad"]
                watched = self._watched(method)
                self._before.append((owner, method, watched))
                owner.zero_grad = watched

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            before, self.on = self.on, self.on or bool(set_to_none)
            try:
                return method(owner, set_to_none)
            finally:
                self.on = before

        return zero_grad

    def close(self) -> None:
        """Restore the methods."""
        for owner, method, watched in self._before:
            if vars(owner)["zero_grad"] is watched:  # else others have wrapped it, and it runs as ever
                owner.zero_grad = method
        self._before.clear()
