"""Wrappers: tensors that wrap others and compute by `__torch_dispatch__`: torchao's, DTensor, jagged, hand-written.

Note: [Wrappers]
A wrapper has no bytes. The tensors that it wraps are on the device, and its ops reach the mode as ops on these. The
mode leaves every op on a wrapper to its class. `_make_wrapper_subclass` with a cuda device would make a tensor on cuda
for C++. The autograd engine of a build for the CPU has no queue for such a tensor. So the wrapper is made on "meta"
with the autocast key of cuda, by which `home_of` recognises it. C++ makes a DTensor without that key. So autocast
handles tensors of every kind, and composite ops that look at the device are routed for "meta" too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from elbowroom.capture.virtual.tensor import META
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.torch_compat.core import KEYS_OF_CUDA, MAKE_WRAPPER
from elbowroom.torch_compat.subclasses import adds_no_dispatch, wraps_others

Change = tuple[Any, str, Any]
DEVICE, KEYS = 6, 12
"""Positions of two arguments of `_make_wrapper_subclass`, counted after the class."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether the class of a tensor defines ops on it."""
    return not adds_no_dispatch(type(tensor))


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with a tensor's bytes: those that it declares to wrap, else its attributes, else itself."""
    if not is_wrapper(tensor):
        yield tensor
        return
    if wraps_others(tensor):
        yield from inside(tensor)
        return
    for value in vars(tensor).values():
        if isinstance(value, torch.Tensor):
            yield from parts_of(value)


def _maker(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of `Tensor._make_wrapper_subclass`."""

    def made(cls: type, *args: Any, **how: Any) -> Any:
        given = list(args)
        device = given[DEVICE] if len(given) > DEVICE else how.get("device")
        if device is None or torch.device(device).type != "cuda":
            return make(cls, *args, **how)
        _put(given, how, DEVICE, "device", META)
        keys = given[KEYS] if len(given) > KEYS else how.get("_extra_dispatch_keys")
        _put(given, how, KEYS, "_extra_dispatch_keys", KEYS_OF_CUDA if keys is None else keys | KEYS_OF_CUDA)
        return make(cls, *given, **how)

    return made


def _put(given: list[Any], how: dict[str, Any], place: int, name: str, value: Any) -> None:
    """Set an argument, at its position if it was given there, else by its name."""
    if len(given) > place:
        given[place] = value
    else:
        how[name] = value


def changes() -> list[Change]:
    """Return the changes of torch while the device is on."""
    return [(torch.Tensor, MAKE_WRAPPER, staticmethod(_maker(getattr(torch.Tensor, MAKE_WRAPPER))))]
