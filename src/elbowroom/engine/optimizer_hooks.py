"""Hooks in torch's optimizers: around their step functions, and before each read of their states.

An optimizer's `step` runs hooks, the function of its class, and hooks again. Only that function is carried out in parts
(optimizer_parts.py). So hooks, schedulers and gradient scalers see one step, as usual. See Note: [States away]. Most
closures are called before it: Note: [Closures].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

from elbowroom.engine.optimizer_parts import closure_of
from elbowroom.engine.own_thread import OwnThread
from elbowroom.engine.state_dicts import Packed, Packing
from elbowroom.torch_compat.core import step_cell

Asked = Callable[[torch.optim.Optimizer], None]
Step = Callable[[torch.optim.Optimizer, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@final
class Stepping:
    """Wraps the step functions of all optimizers that are met, until `close`.

    Args:
        begins: called with an optimizer where its step begins: before it, or after the closure that it calls first.
        step: called with an optimizer, the function of its class that does its step, and the arguments of the call.
        asked: called with an optimizer before somebody reads its states; None if no state is ever away.
        packing: called with an optimizer and `Optimizer.state_dict`, in place of that; None leaves it as it is.
    """

    def __init__(self, begins: Asked, step: Step, asked: Asked | None, packing: Packing | None = None) -> None:
        self._begins = begins
        self._step = step
        self._unpacked = None if packing is None else _replace_state_dict(packing)
        self._guards = asked is not None
        self._thread = OwnThread()
        self._changed: list[tuple[Any, Any]] = []
        if asked is not None:
            _guard_states(asked)

    def meets(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Wrap the step function of an optimizer that is called with these arguments, the optimizer first."""
        cell = step_cell(optimizer)
        if cell is not None and not any(known is cell for known, _ in self._changed):
            before = cell.cell_contents
            self._changed.append((cell, before))
            cell.cell_contents = self._carried_out(before)
        if cell is None or closure_of(optimizer, cell.cell_contents, args, kwargs) is None:
            self._begins(optimizer)

    def _carried_out(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that has the step of an optimizer carried out, in place of the function that does it."""

        @wraps(before)
        def step(*args: Any, **kwargs: Any) -> Any:
            compiles = torch.compiler.is_compiling()
            if not compiles and self._thread.left:
                return before(*args, **kwargs)
            optimizer = args[0]
            closure = None if compiles else closure_of(optimizer, before, args, kwargs)
            if closure is None:
                return self._step(optimizer, before, args, kwargs)
            with torch.enable_grad():
                loss = closure()
            self._begins(optimizer)
            self._step(optimizer, before, args[:1], {})
            return loss

        return step

    def unwrap(self) -> None:
        """Restore all step functions."""
        for cell, before in self._changed:
            cell.cell_contents = before
        self._changed.clear()

    def close(self) -> None:
        """Restore all step functions, `Optimizer.state` and `Optimizer.state_dict`."""
        self.unwrap()
        if self._guards:
            delattr(torch.optim.Optimizer, "state")
        if self._unpacked is not None:
            torch.optim.Optimizer.state_dict = self._unpacked  # pyright: ignore[reportAttributeAccessIssue]


def _replace_state_dict(packing: Packing) -> Callable[[torch.optim.Optimizer], Packed]:
    """Let `packing` answer `Optimizer.state_dict`. Returns what answered before."""
    before = torch.optim.Optimizer.state_dict

    @wraps(before)
    def state_dict(optimizer: torch.optim.Optimizer) -> Packed:
        return packing(optimizer, before)

    torch.optim.Optimizer.state_dict = state_dict  # pyright: ignore[reportAttributeAccessIssue]
    return before


def _guard_states(asked: Asked) -> None:
    """Make `Optimizer.state` a property that calls `asked` before each read. The instances keep their states."""

    def get(optimizer: torch.optim.Optimizer) -> Any:
        asked(optimizer)
        try:
            return vars(optimizer)["state"]
        except KeyError:
            raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'state'") from None

    def put(optimizer: torch.optim.Optimizer, states: Any) -> None:
        vars(optimizer)["state"] = states

    def remove(optimizer: torch.optim.Optimizer) -> None:
        vars(optimizer).pop("state")

    torch.optim.Optimizer.state = property(get, put, remove)  # pyright: ignore[reportAttributeAccessIssue]
