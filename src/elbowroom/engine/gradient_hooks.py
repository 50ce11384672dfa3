"""Hooks around the writing of parameters' gradients by backward, and around each read of one.

`AccumulateGrad` runs the hooks of a parameter before it writes, and those for accumulated gradients after. In C++ only
it and DistributedDataParallel read `grad` of a parameter. With the latter, these hooks are not used. All other readers
are Python: clipping, scalers, `zero_grad`, hooks. While the hooks are installed, `nn.Parameter.grad` is a property that
reports each such read.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elbowroom.engine.optimizer_parts import Found, is_resizable
from elbowroom.engine.storages import storage_of
from elbowroom.torch_compat.core import holders_of, never_compiled, storage_key, tensor_uses

GRAD: Any = torch.Tensor.grad
"""Reads and writes a gradient without reporting it."""


@final
class Accumulating:
    """Hooks around the accumulations of parameters' gradients, from `install` until `close`.

    Args:
        begins: called with a parameter before its gradient is written.
        ends: called after that with the parameter and its gradient, or None if the gradient cannot move.
        asked: called with a parameter before somebody reads its gradient.
        replaced: called with a parameter before somebody gives it another gradient.
        where: the device of the gradients that may move.
        least_bytes: smaller gradients do not move.
    """

    def __init__(
        self,
        begins: Callable[[nn.Parameter], None],
        ends: Callable[[nn.Parameter, Found | None], None],
        asked: Callable[[nn.Parameter], None],
        replaced: Callable[[nn.Parameter], None],
        where: torch.device,
        least_bytes: int,
    ) -> None:
        self._begins, self._ends, self._asked, self._replaced = begins, ends, asked, replaced
        self._where, self._least_bytes = where, max(1, least_bytes)
        self._handles: dict[Hashable, tuple[weakref.ref[nn.Parameter], list[Any]]] = {}
        self._arriving: int | None = None
        self._guards = False

    @property
    def installed(self) -> bool:
        """Whether any parameter has the hooks."""
        return bool(self._handles)

    def of(self, key: Hashable) -> nn.Parameter | None:
        """Return the parameter with this identity, if it has the hooks."""
        known = self._handles.get(key)
        return None if known is None else known[0]()

    def __iter__(self) -> Iterator[Hashable]:
        """Yield the identities of the parameters that have the hooks."""
        return iter(list(self._handles))

    def found(self, parameter: nn.Parameter) -> Found | None:
        """Return the gradient of a parameter; None if it cannot move."""
        return gradient_of(parameter, self._where, self._least_bytes, None)

    def install(self, parameters: Iterable[torch.Tensor]) -> None:
        """Give the hooks to these parameters, as far as their gradients may move, and take them from all others."""
        wanted = {id(each): each for each in parameters if isinstance(each, nn.Parameter) and self._may_move(each)}
        for key in [key for key, (ref, _) in self._handles.items() if ref() is None or key not in wanted]:
            self._leave_alone(key)
        if wanted and "grad" not in vars(nn.Parameter):
            _guard_gradients(self._asked, self._replaced)
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
            and (parameter.requires_grad or self.of(id(parameter)) is parameter)  # it may be frozen for a while
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
                # gradient is None means zeros: backward will write nothing
                storage = None if gradient is None else storage_of(gradient)
                self._arriving = None if storage is None else storage_key(storage)
                del storage
                self._begins(target)

        @never_compiled
        def after(target: nn.Parameter) -> None:
            arrived, self._arriving = self._arriving, None
            self._ends(target, gradient_of(target, self._where, self._least_bytes, arrived))

        return [parameter.register_hook(before), parameter.register_post_accumulate_grad_hook(after)]

    def _leave_alone(self, key: Hashable) -> None:
        for handle in self._handles.pop(key)[1]:
            handle.remove()

    def close(self) -> None:
        """Remove all hooks."""
        self.install(())


def _guard_gradients(asked: Callable[[nn.Parameter], None], replaced: Callable[[nn.Parameter], None]) -> None:
    """Make `nn.Parameter.grad` a property that calls `asked` before each read, and `replaced` before a new one."""

    def get(parameter: nn.Parameter) -> torch.Tensor | None:
        asked(parameter)
        return GRAD.__get__(parameter)

    def put(parameter: nn.Parameter, gradient: torch.Tensor | None) -> None:
        if gradient is not None and gradient is not GRAD.__get__(parameter):  # `+=` puts the same one
            replaced(parameter)
        GRAD.__set__(parameter, gradient)

    def remove(parameter: nn.Parameter) -> None:
        GRAD.__delete__(parameter)

    nn.Parameter.grad = property(get, put, remove)  # pyright: ignore[reportAttributeAccessIssue]


def gradient_of(parameter: nn.Parameter, where: torch.device, least_bytes: int, arrived: int | None) -> Found | None:
    """Return the storage of a parameter's gradient; None if it cannot be emptied.

    Args:
        parameter: the parameter whose gradient has just been written.
        where: the device that the gradient may leave.
        least_bytes: smaller gradients stay.
        arrived: key of the storage that backward came with. If it has become the gradient, backward still refers to it
            until the hook returns. It does not read it again.
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
    """Return a gradient, with the counts of references to it from Python and from C++."""
    gradient = GRAD.__get__(parameter)
    return gradient, (0, 0) if gradient is None else (sys.getrefcount(gradient), tensor_uses(gradient))


def _lone() -> tuple[int, int]:
    """Return the counts of a gradient that nobody else refers to."""
    parameter = nn.Parameter(torch.empty(1))
    GRAD.__set__(parameter, torch.empty(1))
    return _counted(parameter)[1]


_LONE = _lone()
