"""The tensor of the virtual device: shape, strides, dtype and a device, on a storage that has a size and no bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

import torch

from elbowroom.runtime._torch_compat import NO_TORCH_FUNCTION, MetaKernels, as_subclass, no_dispatch, storage_key

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")


@final
class Inside:
    """Context in which meta kernels run: virtual tensors say there that they are meta tensors, as kernels expect."""

    depth = 0

    def __init__(self) -> None:
        self._kernels = MetaKernels()

    def __enter__(self) -> None:
        Inside.depth += 1
        self._kernels.__enter__()

    def __exit__(self, *problem: object) -> None:
        self._kernels.__exit__(*problem)
        Inside.depth -= 1


class VirtualTensor(torch.Tensor):
    """A tensor without bytes on the device "cuda:0", or on the CPU where a model is built there first."""

    _home: torch.device
    answer: bool = False
    """What a test of its truth gives."""
    asked_for_gradient: ClassVar[Callable[[torch.Tensor], None] | None] = None
    """Is told of each tensor whose gradient somebody is about to get."""

    __torch_function__ = NO_TORCH_FUNCTION  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Only reached where no virtual device is on: the bytes are not there to work on."""
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return alias(args[0])
        raise RuntimeError(
            f"{func}: given a tensor of a virtual device that is off; allowed is its shape, dtype and device; "
            "do the work inside the virtual device"
        )

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return META if Inside.depth else self._home

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._home.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._home.type == "cpu"

    @property
    def is_meta(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(Inside.depth)

    @property
    def data(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        _DATA.__set__(self, value)
        self._home = value.device

    @property
    def grad(self) -> torch.Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if VirtualTensor.asked_for_gradient is not None:
            VirtualTensor.asked_for_gradient(self)
        return gradient_of(self)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _GRAD.__set__(self, value)

    def get_device(self) -> int:
        return 0 if self.is_cuda else -1

    def data_ptr(self) -> int:
        """No address, but one number for each storage and offset."""
        return storage_key(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        return self

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def tolist(self) -> Any:
        return self.cpu().tolist() if self.dim() else self.item()

    def numpy(self, *, force: bool = False) -> Any:
        return torch.zeros(self.shape, dtype=self.dtype).numpy()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if not self.dim():
            return f"tensor({self.item()}, device='{self._home}')"
        return f"tensor(..., device='{self._home}', size={tuple(self.shape)}, dtype={self.dtype})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.dim() else repr(self)


_DATA: Any = torch.Tensor.data
_GRAD: Any = torch.Tensor.grad


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its gradient, without asking."""
    return _GRAD.__get__(tensor)


def virtual(meta: torch.Tensor, home: torch.device) -> VirtualTensor:
    """A virtual tensor on the storage of a meta tensor."""
    made: VirtualTensor = as_subclass(VirtualTensor, meta, home)
    made._home = home
    return made


def alias(tensor: VirtualTensor) -> VirtualTensor:
    """Another tensor on the same storage, without autograd's history."""
    return virtual(_detached(tensor), tensor._home)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same shape, strides and dtype."""
    with no_dispatch():  # a virtual device that is on takes "meta" for cuda, and would count the bytes
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    with Inside():
        return tensor.detach()
