"""Loading of optimizer states: each may leave as soon as it is on the device, before they pile up.

`Optimizer.load_state_dict` copies all states to the device, and the old ones go only then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

from elbowroom.torch_compat.loaded_states import copy_of_states, loads_as_torch, set_copy_of_states


@final
class StatesLoading:
    """Reports the states that optimizers load, one by one, from now on until `close`.

    Args:
        loaded: called with the optimizer and a state that has just been copied to the device.

    Attributes:
        on: whether an optimizer loads states now, so that torch's own code alone looks at them.
    """

    def __init__(self, loaded: Callable[[torch.optim.Optimizer, torch.Tensor], None]) -> None:
        self.on = False
        self._loaded = loaded
        self._optimizer: torch.optim.Optimizer | None = None
        self._copy, self._load = copy_of_states(), torch.optim.Optimizer.load_state_dict
        self._copies, self._loads = self._copying(self._copy), self._loading(self._load)
        set_copy_of_states(self._copies)
        torch.optim.Optimizer.load_state_dict = self._loads  # pyright: ignore[reportAttributeAccessIssue]

    def _loading(self, load: Any) -> Any:
        @wraps(load)
        def load_state_dict(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self.on or not loads_as_torch(optimizer):
                return load(optimizer, *args, **kwargs)
            self.on, self._optimizer = True, optimizer
            try:
                return load(optimizer, *args, **kwargs)
            finally:
                self.on, self._optimizer = False, None

        return load_state_dict

    def _copying(self, copy: Any) -> Any:
        def copied(parameter: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found = copy(parameter, value, *args, **kwargs)
            if self._optimizer is not None and found is not value:
                self._loaded(self._optimizer, found)
            return found

        return copied

    def close(self) -> None:
        """Report no more."""
        if copy_of_states() is self._copies:  # else others have wrapped it
            set_copy_of_states(self._copy)
        if torch.optim.Optimizer.load_state_dict is self._loads:
            torch.optim.Optimizer.load_state_dict = self._load
