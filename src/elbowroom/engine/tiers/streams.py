"""Streams of a device: queues of work that wait for each other on the device, and not on the host.

`Streams` is what the host tier needs of them. Tests use queues in their place that they work off by hand.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, final

import torch

from elbowroom.torch_compat.core import on_stream, stream_ids
from elbowroom.torch_compat.cuda_allocator import TO_DEVICE, TO_HOST, event_type, memcpy_async

LOOK_S = 0.0002
"""Seconds between two looks of a thread that waits for a mark. Waiting for a CUDA event would keep a core busy."""


class Streams(ABC):
    """Streams of one device.

    Attributes:
        out: the stream on which storages leave.
        back: the stream on which they come back.
        lost: whether the device no longer answers. Nothing is waited for then, and times are not measured.
    """

    out: Hashable
    back: Hashable
    lost: bool = False

    @abstractmethod
    def current(self) -> Hashable:
        """Return the stream that gets the work of the calling thread."""

    def capturing(self, stream: Hashable) -> bool:  # noqa: ARG002 - for devices that capture no graphs
        """Tell whether the current stream, which is given, captures its work for later in place of doing it."""
        return False

    @abstractmethod
    def mark(self, stream: Hashable, *, timed: bool = False) -> Any:
        """Set a mark behind all work that a stream has been given so far; a `timed` mark knows its time."""

    @abstractmethod
    def wait(self, stream: Hashable, mark: Any) -> None:
        """Make later work of a stream begin after a mark."""

    def copy_behind(self, other: Hashable, target: int, source: int, size_bytes: int, stream: Hashable) -> Any:
        """Enqueue a copy that begins after all work that another stream has been given so far.

        Not thread-safe. Returns the mark behind the copy.
        """
        self.wait(stream, self.mark(other))
        self.copy(target, source, size_bytes, stream)
        return self.mark(stream)

    def wait_last(self, stream: Hashable, mark: Any, lane: Hashable) -> None:  # noqa: ARG002 - if marks are not reused
        """Wait as in `wait`, for a mark of `copy_behind` on a lane (`out` or `back`), and allow its reuse.

        Reusing the mark is safe. It may be set again later on the same lane. A later position on that lane implies
        that this copy is done.
        """
        self.wait(stream, mark)

    @abstractmethod
    def reached(self, mark: Any) -> bool:
        """Tell whether a stream has reached a mark."""

    def until(self, mark: Any) -> None:
        """Block the calling thread until a stream has reached a mark."""
        while not self.reached(mark):
            time.sleep(LOOK_S)

    @abstractmethod
    def copy(self, target: int, source: int, size_bytes: int, stream: Hashable) -> None:
        """Enqueue a copy of `size_bytes` bytes on `out` or `back`, between two addresses."""

    @abstractmethod
    def new_storage(self, size_bytes: int, stream: Hashable) -> torch.UntypedStorage:
        """Allocate device memory for a stream: once freed, it goes to later work of this stream without a wait."""

    @abstractmethod
    def resize(self, storage: torch.UntypedStorage, size_bytes: int, stream: Hashable) -> None:
        """Give a device storage new memory of a stream. What it held is lost."""

    @abstractmethod
    def used(self, storage: torch.UntypedStorage, stream: Hashable) -> None:
        """Note that another stream than its own uses a storage: its memory is not reused before that work is done."""

    @abstractmethod
    def finish(self) -> None:
        """Block until all work of the device is done."""

    @abstractmethod
    def time_ns(self, mark: Any) -> int:
        """Return when a timed mark was reached, in `time.perf_counter_ns`. Call it after `finish`."""


@final
class CudaStreams(Streams):
    """Two copy streams of a CUDA device, in addition to the streams of the user.

    Args:
        device: the device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self._zero: Any = None
        self._zero_ns = 0
        self._known: dict[tuple[int, int, int], torch.cuda.Stream] = {}
        self._memcpy, self._event = memcpy_async(), event_type()
        self._out, self._back = self.out.cuda_stream, self.back.cuda_stream
        self._index = device.index
        self._before = self._event()
        self._spare_out: list[Any] = []
        self._spare_back: list[Any] = []

    def current(self) -> Hashable:
        ids = stream_ids(self._index)
        found = self._known.get(ids)
        if found is None:
            found = self._known[ids] = torch.cuda.current_stream(self.device)
        return found

    def capturing(self, stream: Any) -> bool:
        # The default stream, 0, cannot be captured (CUDA Programming Guide, "Prohibited and Unhandled Operations").
        return stream.stream_id != 0 and torch.cuda.is_current_stream_capturing()

    def mark(self, stream: Any, *, timed: bool = False) -> Any:
        if self.lost:
            return None
        if timed and self._zero is None:
            self._zero = self._event(enable_timing=True)
            self._zero.record(stream)
            self._zero.synchronize()
            self._zero_ns = time.perf_counter_ns()
        event = self._event(enable_timing=True) if timed else self._event()
        event.record(stream)
        return event

    def wait(self, stream: Any, mark: Any) -> None:
        if not self.lost:
            mark.wait(stream)

    def copy_behind(self, other: Any, target: int, source: int, size_bytes: int, stream: Any) -> Any:
        before = self._before  # one event is enough: a wait is for what was recorded before it
        before.record(other)
        before.wait(stream)
        if stream is self.out:
            spare, kind, raw = self._spare_out, TO_HOST, self._out
        else:
            spare, kind, raw = self._spare_back, TO_DEVICE, self._back
        failed = self._memcpy(target, source, size_bytes, kind, raw)
        if failed:
            raise torch.cuda.CudaError(failed)
        end = spare.pop() if spare else self._event()  # creating and destroying an event costs more than the rest
        end.record(stream)
        return end

    def wait_last(self, stream: Any, mark: Any, lane: Any) -> None:
        if not self.lost:
            mark.wait(stream)
            (self._spare_out if lane is self.out else self._spare_back).append(mark)

    def reached(self, mark: Any) -> bool:
        return self.lost or mark.query()

    def copy(self, target: int, source: int, size_bytes: int, stream: Any) -> None:
        kind, raw = (TO_HOST, self._out) if stream is self.out else (TO_DEVICE, self._back)
        failed = self._memcpy(target, source, size_bytes, kind, raw)
        if failed:
            raise torch.cuda.CudaError(failed)

    def new_storage(self, size_bytes: int, stream: Any) -> torch.UntypedStorage:
        if self._known.get(stream_ids(self._index)) is stream:
            return torch.UntypedStorage(size_bytes, device=self.device)
        return on_stream(stream, lambda: torch.UntypedStorage(size_bytes, device=self.device))

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, stream: Any) -> None:
        on_stream(stream, lambda: storage.resize_(size_bytes))

    def used(self, storage: torch.UntypedStorage, stream: Any) -> None:
        bytes_of(storage).record_stream(stream)

    def finish(self) -> None:
        if not self.lost:
            torch.cuda.synchronize(self.device)

    def time_ns(self, mark: Any) -> int:
        return self._zero_ns if self.lost else self._zero_ns + round(self._zero.elapsed_time(mark) * 1e6)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of its bytes."""
    whole: Any = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))
