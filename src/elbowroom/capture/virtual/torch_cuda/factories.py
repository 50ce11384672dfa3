"""Factories: the device that Python names: numbers are cuda devices, and "meta" is meta.

If C++ requests a tensor on "meta", it is for the device of a virtual tensor (Note: [What makes a tensor virtual]). If
Python does, it is for meta: such a tensor is torch's own, has no bytes on any device and does not count. So each
function of torch that takes a device is replaced. While the replacement runs, it remembers that Python has named meta.
A number is a device of the accelerator, which C++ does not find in a build for the CPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch

from elbowroom.capture.virtual.tensor import CUDA, is_virtual
from elbowroom.torch_compat.core import (
    DeviceContext,
    device_constructors,
    parse_to,
    uninitialized_changes,
)

Change = tuple[Any, str, Any]
LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
METHODS = ("to", "cuda", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
OTHERS: dict[Any, tuple[str, ...]] = {torch: ("normal",), torch.fft: ("fftfreq", "rfftfreq")}
"""Functions with a keyword `device` that are not among torch's constructors."""
_Device = torch.device


@final
class _Meta(threading.local):
    """Number of running functions of this thread for which Python named "meta"."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *problem: object) -> None:
        self.depth -= 1


META_ASKED = _Meta()


def is_meta(device: Any) -> bool:
    """Return whether a device is "meta", in any form."""
    if isinstance(device, str):
        return device.startswith("meta")
    return isinstance(device, _Device) and device.type == "meta"


def _given(value: Any) -> Any:
    """Return a device as C++ takes it."""
    return CUDA if type(value) is int else value


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function with a keyword `device`."""

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) in (list, tuple):
            args = (_without_tensors(args[0]), *args[1:])
        device = kwargs.get("device")
        if device is None:
            return function(*args, **kwargs)
        if type(device) is int:
            kwargs["device"] = _given(device)
        elif is_meta(device):
            with META_ASKED:
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return asked


def _without_tensors(data: Any) -> Any:
    """Replace tensors without bytes in data by numbers."""
    if type(data) in (list, tuple):
        return type(data)(map(_without_tensors, data)) if any(map(_may_be_tensor, data)) else data
    return data.tolist() if is_virtual(data) else data


def _may_be_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | list | tuple)


def _mover(function: Callable[..., Any], first: int) -> Callable[..., Any]:
    """Wrap a function whose device may also be its argument number `first`."""

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if len(args) > first:
            args = (*args[:first], *_place(args[first]), *args[first + 1 :])
        if isinstance(kwargs.get("tensor"), torch.Tensor):
            args = (*args, *_place(kwargs.pop("tensor")))
        if type(kwargs.get("device")) is int:
            kwargs["device"] = _given(kwargs["device"])
        if _any_meta(args[first:], kwargs):
            with META_ASKED:
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return asked


def _place(value: Any) -> tuple[Any, ...]:
    """Return a device as C++ takes it, alone or with a dtype: C++ does not know a virtual tensor's device."""
    if isinstance(value, torch.Tensor) and is_virtual(value):
        return value.device, value.dtype
    return (_given(value),)


def _type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`Tensor.type_as`."""
    return self.to(other)


def _any_meta(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    tensors = (each for each in args if isinstance(each, torch.Tensor))
    return (
        is_meta(kwargs.get("device")) or any(map(is_meta, args)) or any(each.device.type == "meta" for each in tensors)
    )


class _DeviceKind(type):
    """Class of the replacement of `torch.device`: every device is an instance of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Device)


class device(metaclass=_DeviceKind):  # noqa: N801  it stands for torch.device
    """`torch.device`, which takes a number as well; the one GPU stands for any of several."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = _Device(_given(args[0])) if len(args) == 1 and not kwargs else _Device(*args, **kwargs)
        return CUDA if made.type == "cuda" and made.index is not None else made


device.__module__ = "torch"


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `with torch.device("meta")`, which names the device of every function that makes tensors."""
    constructors = device_constructors()

    def handle(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_meta(self.device) and func in constructors and (kwargs or {}).get("device") is None:
            with META_ASKED:
                return function(self, func, types, args, kwargs)
        return function(self, func, types, args, kwargs)

    return handle


def changes() -> list[Change]:
    """Return the functions, each with its replacement."""
    made: list[Change] = []
    for name in sorted({each.__name__ for each in device_constructors()} | set(LIKE)):
        function = getattr(torch, name, None)
        if function is not None and (name in LIKE or function in device_constructors()):
            made.append((torch, name, _factory(function)))
    for holder, names in OTHERS.items():
        made += [(holder, name, _factory(getattr(holder, name))) for name in names]
    for name in METHODS:
        function = getattr(torch.Tensor, name)
        made.append((torch.Tensor, name, _mover(function, 1) if name in ("to", "cuda") else _factory(function)))
    made.append((torch.Tensor, "type_as", _type_as))
    made.append((torch, "device", device))
    made.append((DeviceContext, "__torch_function__", _in_context(DeviceContext.__torch_function__)))
    made += uninitialized_changes([value for holder, _, value in made if holder is torch.Tensor])
    made.append((*parse_to(), _mover(getattr(*parse_to()), 0)))
    return made
