"""Attributes of `torch.Tensor` that are replaced while a virtual device is on.

For C++ a virtual tensor is on "meta" (Note: [What makes a tensor virtual] in tensor.py), for Python on its device. For
any other tensor each attribute is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.tensor import CPU, META, AsMeta, gradient_of, home_of
from elbowroom.capture.virtual.torch_cuda.storage_methods import address_of
from elbowroom.capture.virtual.wrappers import is_wrapper
from elbowroom.torch_compat.core import no_dispatch, without_torch_function

Tensor = torch.Tensor
Change = tuple[Any, str, Any]


NO_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
NO_NUMPY_GRAD = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
"""Message of torch."""


class Asked:
    """The function that is called with each tensor whose gradient Python is about to read."""

    gradient: Callable[[torch.Tensor], None] | None = None


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


_device, _is_cuda, _is_cpu, _is_meta = map(_getter, ("device", "is_cuda", "is_cpu", "is_meta"))


def _said_device(self: torch.Tensor) -> torch.device:
    """Return a tensor's device; inside meta kernels, "meta"."""
    found: torch.device = _device(self)
    if found.type != "meta" or AsMeta.here.depth:
        return found
    return home_of(self) or META


def _said_is_cuda(self: torch.Tensor) -> bool:
    home = home_of(self)
    return _is_cuda(self) if home is None else home.type == "cuda"


def _said_is_cpu(self: torch.Tensor) -> bool:
    home = home_of(self)
    return _is_cpu(self) if home is None else home.type == "cpu"


def _said_is_meta(self: torch.Tensor) -> bool:
    return _is_meta(self) and (AsMeta.here.depth > 0 or home_of(self) is None)


def _grad(self: torch.Tensor) -> torch.Tensor | None:
    if Asked.gradient is not None and home_of(self) is not None:
        Asked.gradient(self)
    return gradient_of(self)


_GRAD: Any = Tensor.grad


def _said_get_device(self: torch.Tensor) -> int:
    home = home_of(self)
    if home is None:
        return _get_device(self)
    return -1 if home.index is None else home.index


def _said_data_ptr(self: torch.Tensor) -> int:
    """Return a stand-in address that nothing else has."""
    if home_of(self) is None or is_wrapper(self):
        return _data_ptr(self)
    return address_of(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()


def _said_tolist(self: torch.Tensor) -> Any:
    home = home_of(self)
    if home is None:
        return _tolist(self)
    if home.type == "cuda":
        return self.detach().cpu().tolist()  # the copy adds the remark on assumed values
    return _said_numpy(self, force=True).tolist() if self.dim() else self.item()


def _said_numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    home = home_of(self)
    if home is None:
        return _numpy(self, force=force)
    if home.type == "cuda" and not force:
        raise TypeError(NO_NUMPY)
    if self.requires_grad and not force:
        raise RuntimeError(NO_NUMPY_GRAD)
    return on_host(self).numpy()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with bytes for a virtual one: its known values, else zeros."""
    known = None if KnownValues.current is None else KnownValues.current.read(tensor)
    if known is not None:
        return known
    with no_dispatch():  # else large ones would have no bytes either
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=CPU)


def _described(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    """Return the `repr`: known values, and the assumed value of a single number."""
    home = home_of(self)
    if home is None:
        return _repr(self, tensor_contents=tensor_contents)
    known = None if KnownValues.current is None else KnownValues.current.of(self.detach())
    if self.dim() and known is None:
        begin = f"tensor(..., device='{home}', size={tuple(self.shape)}, dtype={self.dtype}"
    else:
        with without_torch_function():
            shown = torch.tensor(self.item(), dtype=self.dtype, device=CPU) if known is None else known
        begin = _repr(shown)[:-1] + f", device='{home}'" * (home.type == "cuda")
    node = self.grad_fn
    ends = f", grad_fn=<{type(node).__name__}>" if node is not None else ", requires_grad=True" * self.requires_grad
    return f"{begin}{ends})"


def _formatted(self: torch.Tensor, spec: str) -> str:
    """Return the `format`."""
    if home_of(self) is None:
        return _format(self, spec)
    return format(self.item(), spec) if not self.dim() else object.__format__(self, spec)


_get_device, _data_ptr, _tolist, _numpy = Tensor.get_device, Tensor.data_ptr, Tensor.tolist, Tensor.numpy
_repr, _format = Tensor.__repr__, Tensor.__format__


def changes() -> list[Change]:
    """Return the attributes, each with its new value."""
    found: dict[str, Any] = {
        "device": property(_said_device),
        "is_cuda": property(_said_is_cuda),
        "is_cpu": property(_said_is_cpu),
        "is_meta": property(_said_is_meta),
        "grad": property(_grad, _GRAD.__set__, _GRAD.__delete__),
        "get_device": _said_get_device,
        "data_ptr": _said_data_ptr,
        "tolist": _said_tolist,
        "numpy": _said_numpy,
        "__repr__": _described,
        "__format__": _formatted,
    }
    return [(Tensor, name, value) for name, value in found.items()]
