"""Types of tensors by their old names: `x.type()`, `torch.cuda.FloatTensor(2, 3)`, `x.type(torch.cuda.HalfTensor)`."""

from __future__ import annotations

from typing import Any

import torch

from elbowroom.capture.virtual.tensor import home_of

Change = tuple[Any, str, Any]
DTYPES: dict[str, torch.dtype] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_type: Any = torch.Tensor.type


class _TensorKind(type):
    """A type of tensors on cuda: it is called to make one, and asked whether a tensor is one."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *args: Any, **_kwargs: Any) -> torch.Tensor:
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to(device="cuda", dtype=cls.dtype)
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if args and isinstance(args[0], torch.Size) else args
        return torch.empty(tuple(size) or (0,), dtype=cls.dtype, device="cuda")


def _kind(name: str, dtype: torch.dtype) -> _TensorKind:
    made = _TensorKind(name, (), {"dtype": dtype, "is_cuda": True, "is_sparse": False, "layout": torch.strided})
    made.__module__ = "torch.cuda"
    return made


def _name(dtype: Any) -> str:
    """Name of a type however it is given; "" of a dtype, which says no device."""
    if isinstance(dtype, str):
        return dtype
    return "" if isinstance(dtype, torch.dtype) else f"{dtype.__module__}.{dtype.__name__}"


def _type_of(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`Tensor.type`: its type's name, or the tensor as another type."""
    home = home_of(self)
    if dtype is None:
        if home is None or self.dtype not in _NAMES:
            return _type(self)
        sparse = "" if self.layout is torch.strided else ".sparse"
        return f"torch{'.cuda' if home.type == 'cuda' else ''}{sparse}.{_NAMES[self.dtype]}"
    name = _name(dtype)
    if not name:
        return self.to(dtype, non_blocking=non_blocking)
    place, _, short = name.rpartition(".")
    if short not in DTYPES or place not in ("torch", "torch.cuda"):
        return _type(self, dtype, non_blocking, **kwargs)
    device = "cuda" if place == "torch.cuda" else "cpu"
    if self.device.type == device:
        return self.to(DTYPES[short], non_blocking=non_blocking)
    return self.to(device, DTYPES[short], non_blocking=non_blocking)


def _set_default(kind: Any) -> None:
    """`torch.set_default_tensor_type`."""
    place, _, short = _name(kind).rpartition(".")
    torch.set_default_dtype(DTYPES[short])
    torch.set_default_device("cuda" if place == "torch.cuda" else None)


def changes() -> list[Change]:
    """What stands for torch's types on cuda, and what asks for them."""
    found: list[Change] = [(torch.cuda, name, _kind(name, dtype)) for name, dtype in DTYPES.items()]
    return [
        *found,
        (torch.Tensor, "type", _type_of),
        (torch, "set_default_tensor_type", _set_default),
    ]
