"""CUDA streams and events of the virtual device: torch's own classes, on which everything is over at once.

Memory that is allocated while another stream is current belongs to that stream: the allocator gives it to no other.
Backward runs an op on the stream of its forward.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Hashable
from typing import Any, ClassVar, Self, final

import torch

from elbowroom.allocator.blocks import PRIVATE
from elbowroom.capture.virtual.tensor import CUDA
from elbowroom.torch_compat.core import in_backward, next_node_number, node_number

Change = tuple[Any, str, Any]
OF_GRADIENTS = 2**62
"""Numbers above this are those of nodes that write gradients."""
CUDA_TYPE = 1
"""Number of cuda among the types of devices."""

_OfTorch = torch.Stream
_EventOfTorch = torch.Event
_numbers = itertools.count(1)


class Stream(_OfTorch):
    """`torch.cuda.Stream`.

    Attributes:
        current: number of the current one.
        first_node: the first node that a forward can have made since it became the current one.
    """

    current: ClassVar[int] = 0
    first_node: ClassVar[int] = 0
    priority: int

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Self:
        number = given.get("stream_id", given.get("stream_ptr"))
        number = next(_numbers) if number is None else number
        new: Any = super().__new__
        made = new(cls, stream_id=number, device_index=CUDA.index, device_type=CUDA_TYPE)
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

    @staticmethod
    def select(number: int) -> None:
        """Make a stream the current one."""
        if number != Stream.current:
            Stream.current, Stream.first_node = number, next_node_number()

    def __enter__(self) -> Self:
        self._before = Stream.current
        Stream.select(self.stream_id)
        return self

    def __exit__(self, *_problem: object) -> None:
        Stream.select(self._before)

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        made = CudaEvent() if event is None else event
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


@final
class VirtualStreams:
    """The streams and pools of a device, numbered as they first allocate.

    Attributes:
        captured: the pool of the graph that is being captured.
        wanted: the pool that the script has set for this thread, which is not backward's.
        replays: number of replays of graphs.
    """

    def __init__(self) -> None:
        self.captured: Hashable = None
        self.wanted: Hashable = None
        self.replays = 0
        self._outside = 0
        self._of_node: dict[int, int] = {}
        self._numbers: dict[tuple[Hashable, int], int] = {}

    def current(self) -> int:
        """Return the stream on which ops run: in backward that of the node, unless code there sets another one."""
        if not self._of_node or Stream.current != self._outside or not in_backward():
            return Stream.current
        number = node_number()
        return self._of_node.get(number, 0) if 0 <= number < OF_GRADIENTS else Stream.current

    def op(self, backward: bool) -> None:
        """Note the stream of an op for its node, if it has one: gathers of weights come between others' ops."""
        if not backward:
            self._outside = Stream.current
        stream, node = self.current(), next_node_number() - 1
        if stream and (backward or node >= Stream.first_node):
            self._of_node[node] = stream

    def step(self) -> None:
        """Forget the nodes of a step that is over."""
        self._of_node.clear()

    def now(self) -> int:
        """Return the allocator's number of the present stream: from `PRIVATE` on for private pools."""
        stream, pool = self.current(), self.captured
        if pool is None and self.wanted is not None and not in_backward():
            pool = self.wanted
        if not stream and pool is None:
            return 0
        number = self._numbers.setdefault((pool, stream), len(self._numbers) + 1)
        return number if pool is None else number + PRIVATE


class ExternalStream(Stream):
    """`torch.cuda.ExternalStream`."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_given: Any) -> Self:
        return super().__new__(cls, device, stream_ptr=stream_ptr // 16)


class CudaEvent(_EventOfTorch):
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
        """Return a millisecond, as nothing runs.

        Raises:
            ValueError: one of the two keeps no time.
        """
        if not (self._is_timed and getattr(end_event, "_is_timed", False)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return 1.0

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


class _StreamKind(type):
    """Class of the replacements of `torch.Stream` and `torch.Event`: torch's own objects are instances of them."""

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
class AnyStream(metaclass=_StreamKind):
    """`torch.Stream`, of the GPU if no other device is named."""

    of_torch = _OfTorch

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Any:
        if not _is_cuda(device):
            return _OfTorch(device, priority=priority, **given)
        return Stream(device, priority, **given)


@final
class AnyEvent(metaclass=_StreamKind):
    """`torch.Event`, of the GPU if no other device is named."""

    of_torch = _EventOfTorch

    def __new__(cls, device: Any = None, **given: Any) -> Any:
        return CudaEvent(**given) if _is_cuda(device) else _EventOfTorch(device, **given)


def changes() -> list[Change]:
    """Return the classes that replace torch's own."""
    Stream.current = Stream.first_node = 0
    kinds = {"Stream": Stream, "Event": CudaEvent, "ExternalStream": ExternalStream}
    found: list[Change] = [(place, name, kind) for name, kind in kinds.items() for place in (torch.cuda, _module())]
    return [*found, (torch, "Stream", AnyStream), (torch, "Event", AnyEvent)]


def _module() -> Any:
    return torch.cuda.streams
