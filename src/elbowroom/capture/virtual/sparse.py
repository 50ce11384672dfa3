"""Sparse gradients, which the virtual device does not have: dense ones stand for them, and a remark says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.capture.virtual.ledger import Ledger

SAID = "sparse gradients (estimated as dense ones, which need more)"
_SPARSE_OF_EMBEDDING, _SPARSE_OF_BAG = 4, 5
"""Positions of the argument `sparse`, as torch.nn.functional passes it."""


def changes(ledger: Ledger) -> list[tuple[Any, str, Any]]:
    """What must be patched in Python."""
    return [
        (torch, "embedding", _dense(torch.embedding, _SPARSE_OF_EMBEDDING, ledger)),
        (torch, "embedding_bag", _dense(torch.embedding_bag, _SPARSE_OF_BAG, ledger)),
        (torch.optim.SparseAdam, "step", _adam),
    ]


def _dense(function: Callable[..., Any], position: int, ledger: Ledger) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > position and given[position]:
            given[position] = False
            ledger.remark("unsupported", SAID)
        if kwargs.pop("sparse", False):
            ledger.remark("unsupported", SAID)
        return function(*given, **kwargs)

    return run


@torch.no_grad()
def _adam(self: Any, closure: Callable[[], Any] | None = None) -> Any:
    """Adam on dense gradients: its state is SparseAdam's, which is dense on CUDA too (sparse_adam.py)."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in self.param_groups:
        for parameter in (each for each in group["params"] if each.grad is not None):
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] += 1
            state["exp_avg"].lerp_(parameter.grad, 0.1)
            state["exp_avg_sq"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(1e-8), value=-1e-3)
    return loss
