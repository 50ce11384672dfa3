"""What is assumed of values that a network computes: nothing breaks a script, and nothing ends it early.

docs/values.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.capture.virtual.known_values import KnownValues
from elbowroom.capture.virtual.tensor import CPU

aten: Any = torch.ops.aten
Rule = Callable[[KnownValues, tuple[Any, ...], dict[str, Any], list[torch.Tensor]], None]


def assume(
    values: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor]
) -> None:
    """Assume values of what an op with unknown inputs made or changed, where a rule says something of them."""
    rule = RULES.get(func)
    if rule is not None:
        rule(values, args, kwargs, results)


def _finite_gradients(values: KnownValues, args: tuple[Any, ...], _: Any, __: list[torch.Tensor]) -> None:
    """No gradient overflows."""
    found = args[1]
    values.keep(found, torch.zeros(found.shape, dtype=found.dtype, device=CPU), certain=False)


RULES: dict[Any, Rule] = {
    aten._amp_foreach_non_finite_check_and_unscale_.default: _finite_gradients,
}
