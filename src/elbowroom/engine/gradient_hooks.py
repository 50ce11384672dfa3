"""Where backward writes the gradients of parameters, and who asks for one.

`AccumulateGrad` runs the hooks of a parameter before it writes, and those for accumulated gradients after. `grad` of a
parameter is read in C++ by it alone, and by DistributedDataParallel, beside which none of this is used. All else that
reads it is Python (clipping, scalers, `zero_grad`, hooks), and `nn.Parameter.grad` tells of it as long as one is open.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elbowroom.engine.optimizer_parts import Found, is_resizable
from elbowroom.engine.storages import storage_of
from elbowroom.torch_compat.core import holders_of, never_compiled, storage_key, tensor_uses

GRAD: Any = torch.Tensor.grad
"""Reads and writes a gradient without asking."""


@final
class Accumulating:
    """Stands around the accumulations of parameters, from `install` until `close`.

    Args:
        begins: called with a parameter before its gradient is written.
        ends: called with it after, and with its gradient; None where that cannot move.
        asked: called with a parameter before somebody gets its gradient.
        where: the device of the gradients that are of interest.
        least_bytes: smaller ones are not.
    """

    def __init__(
        self,
        begins: Callable[[nn.Parameter], None],
        ends: Callable[[nn.Parameter, Found | None], None],
        asked: Callable[[nn.Parameter], None],
        where: torch.device,
        least_bytes: int,
    ) -> None:
        self._begins, self._ends, self._asked = begins, ends, asked
        self._where, self._least_bytes = where, max(1, least_bytes)
        self._handles: dict[int, tuple[weakref.ref[nn.Parameter], list[Any]]] = {}
        self._arriving: int | None = None
        self._guards = False

    @property
    def installed(self) -> bool:
        """Whether it stands around any."""
        return bool(self._handles)

    def install(self, parameters: Iterable[torch.Tensor]) -> None:
        """Stand around those of some parameters, as far as they may have gradients that move, and no others."""
        wanted = {id(each): each for each in parameters if isinstance(each, nn.Parameter) and self._may_move(each)}
        for key in [key for key, (ref, _) in self._handles.items() if ref() is None or key not in wanted]:
            self._leave_alone(key)
        if wanted and "grad" not in vars(nn.Parameter):
            _guard_gradients(self._asked)
            self._guards = True
        if self._guards and not wanted:
            del nn.Parameter.grad
            self._guards = False
        for key, parameter in wanted.items():
            if key not in self._handles:
                self._handles[key] = weakref.ref(parameter), self._hooked(parameter)

    def _may_move(self, parameter: nn.Parameter) -> bool:
        return (
            not is_lazy(parameter)
            and parameter.requires_grad
            and parameter.device == self._where
            and parameter.layout is torch.strided
            and parameter.numel() * parameter.element_size() >= self._least_bytes
        )

    def _hooked(self, parameter: nn.Parameter) -> list[Any]:
        alive = weakref.ref(parameter)

        @never_compiled
        def before(gradient: torch.Tensor | None) -> None:
            target = alive()
            if target is not None:
                storage = (
                    None if gradient is None else storage_of(gradient)
                )  # None stands for zeros: nothing is written
                self._arriving = None if storage is None else storage_key(storage)
                del storage
                self._begins(target)

        @never_compiled
        def after(target: nn.Parameter) -> None:
            arrived, self._arriving = self._arriving, None
            self._ends(target, gradient_of(target, self._where, self._least_bytes, arrived))

        return [parameter.register_hook(before), parameter.register_post_accumulate_grad_hook(after)]

    def _leave_alone(self, key: int) -> None:
        for handle in self._handles.pop(key)[1]:
            handle.remove()

    def close(self) -> None:
        """Put everything back as it was."""
        self.install(())


def _guard_gradients(asked: Callable[[nn.Parameter], None]) -> None:
    """Have `nn.Parameter.grad` ask first."""

    def get(parameter: nn.Parameter) -> torch.Tensor | None:
        asked(parameter)
        return GRAD.__get__(parameter)

    def put(parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
        GRAD.__set__(parameter, gradient)

    def remove(parameter: nn.Parameter) -> None:
        GRAD.__delete__(parameter)

    nn.Parameter.grad = property(get, put, remove)  # pyright: ignore[reportAttributeAccessIssue]


def gradient_of(parameter: nn.Parameter, where: torch.device, least_bytes: int, arrived: int | None) -> Found | None:
    """The storage of a parameter's gradient, where it can be emptied.

    Args:
        parameter: whose gradient has just been written.
        where: the device that it may leave.
        least_bytes: smaller ones stay.
        arrived: key of the storage that backward came with. If that has become the gradient, backward itself still
            refers to it, until the hook returns, and does not look at it again.
    """
    gradient, counts = _counted(parameter)
    if (
        type(parameter) is not nn.Parameter
        or type(gradient) is not torch.Tensor
        or gradient.device != where
        or gradient.requires_grad
    ):
        return None
    storage = storage_of(gradient) if gradient.layout is torch.strided else None
    if storage is None or storage.nbytes() < least_bytes or not is_resizable(storage):
        return None
    others = any(count > most for count, most in zip(counts, _LONE, strict=True))
    holders = 2 + (storage_key(storage) == arrived)
    return Found(storage, gradient.dtype, storage.nbytes(), held=others or holders_of(storage) > holders)


def _counted(parameter: nn.Parameter) -> tuple[torch.Tensor | None, tuple[int, int]]:
    """A gradient, with the references to it from Python and from C++."""
    gradient = GRAD.__get__(parameter)
    return gradient, (0, 0) if gradient is None else (sys.getrefcount(gradient), tensor_uses(gradient))


def _lone() -> tuple[int, int]:
    """What the counts are where nobody else refers to a gradient."""
    parameter = nn.Parameter(torch.empty(1))
    GRAD.__set__(parameter, torch.empty(1))
    return _counted(parameter)[1]


_LONE = _lone()
