"""The private method by which torch's modules move and cast their tensors. Checked on 2.11.0 and 2.13.0.

`Module.to`, `cuda`, `half`, `to_empty` and the like call it once for each module. It calls a function with each tensor.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def apply_of_modules() -> Any:
    """Return `Module._apply`, as it is now."""
    return nn.Module._apply


def set_apply_of_modules(method: Any) -> None:
    """Replace `Module._apply`."""
    nn.Module._apply = method
