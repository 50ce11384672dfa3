"""Streams and events of the virtual device: torch's own classes, on which everything is over at once.

What is allocated while another stream is current comes from the one pool there is; on a GPU each stream has its own.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, ClassVar, Self, final

import torch

from elbowroom.capture.virtual.tensor import CUDA

Change = tuple[Any, str, Any]
CUDA_TYPE = 1
"""Number of cuda among the types of devices."""

_OfTorch = torch.Stream
_EventOfTorch = torch.Event
_numbers = itertools.count(1)


class Stream(_OfTorch):
    """`torch.cuda.Stream`."""

    current: ClassVar[int] = 0
    priority: int

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Self:
        number = given.get("stream_id", given.get("stream_ptr"))
        number = next(_numbers) if number is None else number
        new: Any = super().__new__
        made = new(cls, stream_id=number, device_index=0, device_type=CUDA_TYPE)
        made.priority = max(min(priority, 0), -3)
        return made

    def __init__(self, *_args: Any, **_given: Any) -> None: ...

    @property
    def cuda_stream(self) -> int:
        """Its handle."""
        return self.stream_id * 16

    native_handle = cuda_stream

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return 0, -3

    def __enter__(self) -> Self:
        self._before = Stream.current
        Stream.current = self.stream_id
        return self

    def __exit__(self, *_problem: object) -> None:
        Stream.current = self._before

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        made = Event() if event is None else event
        made.record(self)
        return made

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OfTorch) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """`torch.cuda.ExternalStream`."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_given: Any) -> Self:
        return super().__new__(cls, device, stream_ptr=stream_ptr // 16)


class Event(_EventOfTorch):
    """`torch.cuda.Event`."""

    def __new__(cls, *_args: Any, **_given: Any) -> Self:
        new: Any = super().__new__
        return new(cls, "meta")

    def __init__(self, enable_timing: bool = False, *_args: Any, **_given: Any) -> None:
        self._is_timed = enable_timing
        self.cuda_event = id(self)

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return CUDA

    @classmethod
    def from_ipc_handle(cls, *_args: Any) -> Self:
        return cls()

    def ipc_handle(self) -> bytes:
        return bytes(64)

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """A millisecond, as nothing runs.

        Raises:
            ValueError: one of the two keeps no time.
        """
        if not (self._is_timed and getattr(end_event, "_is_timed", False)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return 1.0

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


class _Kind(type):
    """Every stream of torch's is an instance of what stands for `torch.Stream`; so are events."""

    of_torch: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.of_torch)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.of_torch)


def _is_cuda(device: Any) -> bool:
    if device is None or isinstance(device, int):
        return True
    return torch.device(device).type == "cuda"


@final
class AnyStream(metaclass=_Kind):
    """`torch.Stream`: of the GPU where no other device is named."""

    of_torch = _OfTorch

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Any:
        if not _is_cuda(device):
            return _OfTorch(device, priority=priority, **given)
        return Stream(device, priority, **given)


@final
class AnyEvent(metaclass=_Kind):
    """`torch.Event`: of the GPU where no other device is named."""

    of_torch = _EventOfTorch

    def __new__(cls, device: Any = None, **given: Any) -> Any:
        return Event(**given) if _is_cuda(device) else _EventOfTorch(device, **given)


def changes() -> list[Change]:
    """The classes, where torch has its own."""
    kinds = {"Stream": Stream, "Event": Event, "ExternalStream": ExternalStream}
    found: list[Change] = [(place, name, kind) for name, kind in kinds.items() for place in (torch.cuda, _module())]
    return [*found, (torch, "Stream", AnyStream), (torch, "Event", AnyEvent)]


def _module() -> Any:
    return torch.cuda.streams
