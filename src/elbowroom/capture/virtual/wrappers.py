"""Tensors that wrap others and compute by `__torch_dispatch__`: torchao's, DTensor, jagged ones, hand-written ones.

Note: [Wrappers]
A wrapper has no bytes: what it wraps is on the device, and its ops come to the mode as ops on that. The mode leaves
every op on one to its class. `_make_wrapper_subclass` with a cuda device would make a tensor that C++ takes for one on
cuda, which the autograd engine of a build for the CPU has no queue for. So it is made on "meta" with the autocast key
of cuda, by which `home_of` knows it, as any other virtual tensor. C++ makes a DTensor with no such key, so autocast is
asked about tensors of every kind, and composite ops that look at the device are routed for "meta" too.
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
"""Places of two arguments of `_make_wrapper_subclass`, after the class."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the class of a tensor says itself what ops on it do."""
    return not adds_no_dispatch(type(tensor))


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that have its bytes: those that it says it wraps, or else holds as attributes; or itself."""
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
    """`Tensor._make_wrapper_subclass`."""

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
    """Give an argument, where it was given or by its name."""
    if len(given) > place:
        given[place] = value
    else:
        how[name] = value


def changes() -> list[Change]:
    """What is changed of torch while the device is on."""
    return [(torch.Tensor, MAKE_WRAPPER, staticmethod(_maker(getattr(torch.Tensor, MAKE_WRAPPER))))]
