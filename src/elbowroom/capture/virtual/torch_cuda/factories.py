"""Which device Python asks for: numbers are cuda devices, and "meta" means meta.

Where C++ asks for a tensor on "meta", it means the device of a virtual tensor (Note: [What makes a tensor virtual]).
Where Python does, it means meta: such a tensor is torch's own, has no bytes on any device and counts nothing. So each
function of torch that takes a device is replaced by one that remembers, for as long as it runs, that Python has asked.
A number is a device of the accelerator, which C++ does not find in a build for the CPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch

from elbowroom.capture.virtual.tensor import is_virtual
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
    """How many functions of this thread that were asked for "meta" run."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *problem: object) -> None:
        self.depth -= 1


META_ASKED = _Meta()


def is_meta(device: Any) -> bool:
    """Whether a device is "meta", however it is given."""
    if isinstance(device, str):
        return device.startswith("meta")
    return isinstance(device, _Device) and device.type == "meta"


def _given(value: Any) -> Any:
    """A device as C++ takes it."""
    return _Device("cuda", 0) if type(value) is int else value


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a keyword `device`."""

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
    """Data with numbers for the tensors in them that have no bytes."""
    if type(data) in (list, tuple):
        return type(data)(map(_without_tensors, data)) if any(map(_may_be_tensor, data)) else data
    return data.tolist() if is_virtual(data) else data


def _may_be_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | list | tuple)


def _mover(function: Callable[..., Any], first: int) -> Callable[..., Any]:
    """A function whose device may be its argument number `first`, too."""

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
    """A device as C++ takes it, alone or with a dtype: C++ knows not which device a virtual tensor is on."""
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
    """Every device is an instance of what stands for `torch.device`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Device)


class device(metaclass=_DeviceKind):  # noqa: N801  it stands for torch.device
    """`torch.device`, which takes a number as well; the one GPU stands for any of several."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = _Device(_given(args[0])) if len(args) == 1 and not kwargs else _Device(*args, **kwargs)
        return _Device("cuda", 0) if made.type == "cuda" and made.index else made


device.__module__ = "torch"


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """`with torch.device("meta")` names the device of every function that makes tensors."""
    constructors = device_constructors()

    def handle(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_meta(self.device) and func in constructors and (kwargs or {}).get("device") is None:
            with META_ASKED:
                return function(self, func, types, args, kwargs)
        return function(self, func, types, args, kwargs)

    return handle


def changes() -> list[Change]:
    """The functions, each with what stands for it."""
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
