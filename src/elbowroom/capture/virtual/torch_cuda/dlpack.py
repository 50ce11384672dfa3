"""DLPack: tensors of the virtual device that are passed on stay its tensors when torch takes them back.

Another library gets the bytes of a tensor of the host, or zeros if it has none. It cannot read tensors of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.utils import dlpack

from elbowroom.capture.virtual.tensor import home_of
from elbowroom.capture.virtual.torch_cuda.attributes import on_host

Change = tuple[Any, str, Any]


@final
class Handed:
    """Replacement of the capsule of a tensor without bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()


def _hand_over(self: torch.Tensor, **how: Any) -> Any:
    """`Tensor.__dlpack__`."""
    home = home_of(self)
    if home is None:
        return _dlpack(self, **how)
    return Handed(self) if home.type == "cuda" else _dlpack(on_host(self), **how)


def _capsule(tensor: torch.Tensor) -> Any:
    """`torch.utils.dlpack.to_dlpack`."""
    return _to_dlpack(tensor) if home_of(tensor) is None else Handed(tensor)


def _taker(take: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.from_dlpack`."""

    def taken(ext_tensor: Any, **how: Any) -> Any:
        if isinstance(ext_tensor, Handed):
            return ext_tensor.tensor.detach()
        if isinstance(ext_tensor, torch.Tensor) and home_of(ext_tensor) is not None:
            return ext_tensor.detach()
        return take(ext_tensor, **how)

    return taken


_places: Any = dlpack
_dlpack, _to_dlpack = torch.Tensor.__dlpack__, _places.to_dlpack


def changes() -> list[Change]:
    """Return the changes of torch while the device is on."""
    take = _taker(torch.from_dlpack)
    return [
        (torch.Tensor, "__dlpack__", _hand_over),
        (dlpack, "to_dlpack", _capsule),
        (torch, "to_dlpack", _capsule),
        (dlpack, "from_dlpack", take),
        (torch, "from_dlpack", take),
    ]
