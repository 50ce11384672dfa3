"""Ranges in one stretch of memory, handed out in whole pages: the smallest free range that fits goes first."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import final

PAGE_BYTES = 4096


def whole_pages(size_bytes: int) -> int:
    """Round a size up to whole pages."""
    return (size_bytes + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


@final
class Ranges:
    """Free ranges of `size_bytes`: (start, length), ascending, never adjacent."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._free = [(0, size_bytes)]

    @property
    def unused(self) -> bool:
        """Whether nothing is handed out."""
        return self._free == [(0, self.size_bytes)]

    def take(self, size_bytes: int) -> int | None:
        """Hand out a range, and return its start; None if no free range is large enough."""
        pages_bytes = whole_pages(size_bytes)
        at, least = -1, 0
        for i, (_, length) in enumerate(self._free):
            if length >= pages_bytes and (at < 0 or length < least):
                at, least = i, length
        if at < 0:
            return None
        start, _ = self._free[at]
        if least > pages_bytes:
            self._free[at] = (start + pages_bytes, least - pages_bytes)
        else:
            del self._free[at]
        return start

    def give_back(self, start: int, size_bytes: int) -> None:
        """Take back a range that `take` handed out; neighbouring free ranges become one."""
        free, begin, end = self._free, start, start + whole_pages(size_bytes)
        at = until = bisect(free, (start, 0))
        if at and sum(free[at - 1]) == begin:
            at -= 1
            begin = free[at][0]
        if until < len(free) and free[until][0] == end:
            end = sum(free[until])
            until += 1
        free[at:until] = [(begin, end - begin)]


def bytes_for(stays: Iterable[tuple[int, int, int]]) -> int:
    """Return the bytes in which all of these find room when they come and go in their order.

    >>> bytes_for([(0, 2, 4096), (1, 3, 4096), (2, 4, 4096)])
    8192

    Args:
        stays: (from, until, size_bytes) on any time scale; at equal times, leaving comes before arriving.
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
