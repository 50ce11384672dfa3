"""Heap gaps: how much more than its live bytes a program takes, as XLA places all its buffers in one block.

Computes: the height of the block, with the largest buffer placed first and each next one in the smallest gap between
those that live at the same time.
Reference: XLA's GlobalDecreasingSizeBestFitHeap (xla/service/heap_simulator), which the CPU and the GPU use.
Ignores: that XLA has other buffers than the ones here, and takes the better of two orders.
Cost: quadratic in the buffers of at least `LEAST_BYTES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elbowroom.frameworks.jax.flat_step import Buffers, Change, highest

LEAST_PART = 4096
"""Buffers below this part of the largest one fit between others, and are not placed."""


class BufferLife(NamedTuple):
    """A buffer: its bytes, and the first and last change at which it is live."""

    size_bytes: int
    first: int
    last: int


def gap_bytes(changes: Sequence[Change], outside: frozenset[int]) -> int:
    """Return the bytes of the block above the most live bytes.

    Args:
        changes: allocations and frees in order.
        outside: buffers that are not in the block: arguments and results.
    """
    lives = _lives(changes, outside)
    least = max((life.size_bytes for life in lives), default=0) // LEAST_PART
    large = [life for life in lives if life.size_bytes > least]
    return height_of(large) - _most_live(large)


def stack_bytes(buffers: Buffers, stacks: Sequence[Sequence[int]]) -> int:
    """Return how much higher the peak is if each stack is there from the first to the last use of any of its slices."""
    group = {buffers.of[value]: n for n, stack in enumerate(stacks) for value in stack if value in buffers.of}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, change in enumerate(buffers.changes):
        if (n := group.get(change.buffer)) is not None:
            first.setdefault(n, at)
            last[n] = at
    ends: list[tuple[int, int]] = []
    for at, change in enumerate(buffers.changes):
        n = group.get(change.buffer)
        moved = at if n is None else first[n] if change.size_bytes > 0 else last[n]
        ends.append((moved, change.size_bytes))
    most = highest(size_bytes for _, size_bytes in sorted(ends, key=lambda end: end[0]))
    return max(0, most - buffers.peak_bytes)


def height_of(lives: Sequence[BufferLife]) -> int:
    """Return the height of the block in which buffers are placed."""
    placed: list[tuple[int, BufferLife]] = []
    height = 0
    for life in sorted(lives, key=lambda each: (-each.size_bytes, each.first)):
        beside = sorted((at, at + o.size_bytes) for at, o in placed if o.first <= life.last and life.first <= o.last)
        at = _best_gap(beside, life.size_bytes)
        placed.append((at, life))
        height = max(height, at + life.size_bytes)
    return height


def _best_gap(taken: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return where the smallest gap begins that is large enough; the end of what is taken if none is."""
    end, best, best_bytes = 0, -1, 0
    for low, high in taken:
        if low - end >= size_bytes and (best < 0 or low - end < best_bytes):
            best, best_bytes = end, low - end
        end = max(end, high)
    return end if best < 0 else best


def _lives(changes: Sequence[Change], outside: frozenset[int]) -> list[BufferLife]:
    begun: dict[int, int] = {}
    sizes: dict[int, int] = {}
    found: list[BufferLife] = []
    for at, change in enumerate(changes):
        if change.buffer in outside:
            continue
        if change.size_bytes > 0:
            begun[change.buffer], sizes[change.buffer] = at, change.size_bytes
        else:
            found.append(BufferLife(-change.size_bytes, begun.pop(change.buffer), at))
    return found + [BufferLife(sizes[buffer], at, len(changes)) for buffer, at in begun.items()]


def _most_live(lives: Sequence[BufferLife]) -> int:
    ends = [(life.first, life.size_bytes) for life in lives] + [(life.last + 1, -life.size_bytes) for life in lives]
    return highest(size_bytes for _, size_bytes in sorted(ends))
