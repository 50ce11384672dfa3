"""The private function by which torch's optimizers copy a loaded state to the device. Checked on 2.11.0 and 2.13.0.

`Optimizer.load_state_dict` calls it once for each tensor, and puts the results in place when it has all of them.
"""

from __future__ import annotations

from typing import Any

import torch

_NAME = "_process_value_according_to_param_policy"
_HOOKS = "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks"


def copy_of_states() -> Any:
    """Return the function, as it is now."""
    return getattr(torch.optim.Optimizer, _NAME)


def set_copy_of_states(function: Any) -> None:
    """Replace the function."""
    setattr(torch.optim.Optimizer, _NAME, staticmethod(function))


def loads_as_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer loads states as torch.optim does: no subclass and no hook may look at them."""
    kind: Any = type(optimizer)
    methods = kind.__setstate__, kind.load_state_dict
    ours = all(str(method.__module__).startswith("torch.optim.") for method in methods)
    return ours and not any(vars(optimizer).get(name) for name in _HOOKS)
