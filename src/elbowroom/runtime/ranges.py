"""Room in one stretch of memory: ranges handed out whole pages at a time, the smallest free one that fits first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import final

PAGE_BYTES = 4096


def whole_pages(size_bytes: int) -> int:
    """A size, rounded up to pages."""
    return (size_bytes + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


@final
class Ranges:
    """What is free of `size_bytes`: (start, length), ascending, no two of them touching."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._free = [(0, size_bytes)]

    @property
    def unused(self) -> bool:
        """Whether nothing is handed out."""
        return self._free == [(0, self.size_bytes)]

    def take(self, size_bytes: int) -> int | None:
        """Start of a range that is handed out from now on; None where no free one is large enough."""
        pages_bytes = whole_pages(size_bytes)
        fitting = [(length, start) for start, length in self._free if length >= pages_bytes]
        if not fitting:
            return None
        length, start = min(fitting)
        at = self._free.index((start, length))
        self._free[at : at + 1] = [(start + pages_bytes, length - pages_bytes)] if length > pages_bytes else []
        return start

    def give_back(self, start: int, size_bytes: int) -> None:
        """The reverse of `take`; neighbouring free ranges become one."""
        joined: list[tuple[int, int]] = []
        for begin, length in sorted([*self._free, (start, whole_pages(size_bytes))]):
            if joined and sum(joined[-1]) == begin:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((begin, length))
        self._free = joined


def bytes_for(stays: Iterable[tuple[int, int, int]]) -> int:
    """Bytes in which all of these find room when they come and go in their order.

    >>> bytes_for([(0, 2, 4096), (1, 3, 4096), (2, 4, 4096)])
    8192

    Args:
        stays: (from, until, size_bytes) on any scale; who leaves at a time leaves before others come.
    """
    found, end_bytes = Ranges(1 << 62), 0
    held: list[tuple[int, int, int]] = []
    for begin, until, size_bytes in sorted(stays):
        while held and held[0][0] <= begin:
            _, start, gone_bytes = heappop(held)
            found.give_back(start, gone_bytes)
        start = found.take(size_bytes)
        assert start is not None, "there is no end to it"
        heappush(held, (until, start, size_bytes))
        end_bytes = max(end_bytes, start + whole_pages(size_bytes))
    return end_bytes
