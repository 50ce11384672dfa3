"""A device whose streams are worked off by hand: races between compute and copies become sequences.

Its memory is one stretch of bytes. Work that a stream is given keeps addresses, not storages, and is done when the test
says so; a stream stops at a wait until the mark is reached. A freed block goes to the next request of its stream at
once, as in the caching allocator. So whatever gives memory away too early, or reads it too early, shows as wrong bytes.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, final

import torch

from elbowroom.engine.tiers.arenas import Arenas
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.streams import Streams

BLOCK_BYTES = 64
BLOCKS = 512
COMPUTE, OTHER = "compute", "other"


@final
class Mark:
    """A place in a stream."""

    def __init__(self) -> None:
        self.reached = False


@final
class HandStreams(Streams):
    """See above.

    Attributes:
        stream: the current one of the host.
        wrong: what kernels found that was not as it should be.
        without: waits of these (waiting, waited for) are left out, to see what they are good for.
    """

    def __init__(self) -> None:
        self.out, self.back = "out", "back"
        self.stream: Hashable = COMPUTE
        self.wrong: list[str] = []
        self.without: set[tuple[Hashable, Hashable]] = set()
        self._memory = memoryview(bytearray(BLOCK_BYTES * BLOCKS))
        self._fresh = iter(range(BLOCKS))
        self._free: dict[Hashable, list[int]] = {}
        self._held: list[tuple[list[Mark], Hashable, int]] = []
        self._users: dict[int, list[Hashable]] = {}
        self._queues: dict[Hashable, deque[Mark | Callable[[], bool]]] = {}
        self._origin: dict[Mark, Hashable] = {}

    # What the host tier asks for

    def current(self) -> Hashable:
        return self.stream

    def mark(self, stream: Hashable, *, timed: bool = False) -> Mark:
        made = Mark()
        self._origin[made] = stream
        self._queue(stream).append(made)
        return made

    def wait(self, stream: Hashable, mark: Mark) -> None:
        if (stream, self._origin[mark]) not in self.without:
            self._queue(stream).append(lambda: mark.reached)

    def reached(self, mark: Mark) -> bool:
        return mark.reached

    def copy(self, target: int, source: int, size_bytes: int, stream: Hashable) -> None:
        to, of = _bytes_at(target, size_bytes), _bytes_at(source, size_bytes)
        self.kernel(stream, lambda: to.__setitem__(slice(None), of))

    def new_storage(self, size_bytes: int, stream: Hashable) -> torch.UntypedStorage:
        assert size_bytes == BLOCK_BYTES
        self._look_at_held()
        free = self._free.setdefault(stream, [])
        block = free.pop() if free else next(self._fresh)
        storage = torch.frombuffer(self._region(block), dtype=torch.uint8).untyped_storage()
        self._users[block] = []
        weakref.finalize(storage, self._freed, block, stream)
        return storage

    def resize(self, storage: torch.UntypedStorage, size_bytes: int, stream: Hashable) -> None:
        raise AssertionError("these blocks lie in one buffer, and are not resized")

    def used(self, storage: torch.UntypedStorage, stream: Hashable) -> None:
        start = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._users[(storage.data_ptr() - start) // BLOCK_BYTES].append(stream)

    def finish(self) -> None:
        while any(self.advance(stream) for stream in list(self._queues)):
            pass
        assert not any(self._queues.values()), "streams wait for each other"

    def time_ns(self, mark: Any) -> int:
        return 1

    # What the test does

    def kernel(self, stream: Hashable, work: Callable[[], object]) -> None:
        """Give a stream some work."""

        def done() -> bool:
            work()
            return True

        self._queue(stream).append(done)

    def writes(self, storage: torch.UntypedStorage, value: int, stream: Hashable) -> None:
        """Give a stream a kernel that fills a storage."""
        region = _bytes_at(storage.data_ptr(), storage.nbytes())
        self.kernel(stream, lambda: region.__setitem__(slice(None), bytes([value % 251]) * BLOCK_BYTES))

    def checks(self, storage: torch.UntypedStorage, value: int, stream: Hashable) -> None:
        """Give a stream a kernel that looks whether a storage is filled with a value."""
        region, wanted = _bytes_at(storage.data_ptr(), storage.nbytes()), bytes([value % 251]) * BLOCK_BYTES

        def look() -> None:
            if bytes(region) != wanted:
                self.wrong.append(f"{value}: found {set(region)}")

        self.kernel(stream, look)

    def advance(self, stream: Hashable) -> bool:
        """Have a stream do its next piece of work; False where it has none, or waits."""
        queue = self._queue(stream)
        if not queue:
            return False
        work = queue[0]
        if isinstance(work, Mark):
            work.reached = True
        elif not work():
            return False
        queue.popleft()
        return True

    def run(self, stream: Hashable) -> None:
        """Have a stream go on until it waits or is done."""
        while self.advance(stream):
            pass

    def streams(self) -> list[Hashable]:
        """All that were given work."""
        return list(self._queues)

    def _queue(self, stream: Hashable) -> deque[Mark | Callable[[], bool]]:
        return self._queues.setdefault(stream, deque())

    def _region(self, block: int) -> memoryview:
        return self._memory[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]

    def _freed(self, block: int, stream: Hashable) -> None:
        users = self._users.pop(block)
        if users:
            self._held.append(([self.mark(user) for user in users], stream, block))
        else:
            self._free.setdefault(stream, []).append(block)

    def _look_at_held(self) -> None:
        for marks, stream, block in list(self._held):
            if all(mark.reached for mark in marks):
                self._held.remove((marks, stream, block))
                self._free.setdefault(stream, []).append(block)


def host_tier(streams: HandStreams) -> StreamedHostTier:
    """Host memory that is never short."""
    return StreamedHostTier(streams, Arenas(1 << 30, 1 << 30, lambda _address, _size: True, lambda _address: None))


def _bytes_at(address: int, size_bytes: int) -> memoryview:
    """Bytes by their address, which outlives a tensor on them, as it does on a device."""
    import ctypes

    raw = (ctypes.c_char * size_bytes).from_address(address)
    return memoryview(raw).cast("B")


numbers = itertools.count(1)
"""Values for storages, no two the same for a while."""
