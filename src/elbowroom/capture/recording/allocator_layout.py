"""Allocator layout: the segments of a caching allocator as events that bring an empty allocator into the same state.

A trace that begins in the middle of a training must have the allocator's memory by then, with its addresses. Free
memory between blocks that stay is reserved, and later blocks go there. So each segment is made by one request of its
size, which is freed. Then its blocks and holes are requested in the order of addresses, while nothing else is free. In
the end the holes are freed.

Reference: the rules of the allocator in elbowroom/allocator. Ignored: expandable segments, of which only the blocks are
recorded. Free memory of other streams counts as held, as only these can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from elbowroom.allocator.blocks import MIN_BLOCK_BYTES, SMALL_BYTES

HOLE, BRIEF = 0, -1
"""Addresses of fills that are no live block. A HOLE is freed once all segments are made, a BRIEF one at once."""


class LayoutPiece(NamedTuple):
    """Part of a segment: a block or a hole.

    Attributes:
        address: where it begins; HOLE for a hole.
        size_bytes: its bytes, the rounding of a block included.
        requested_bytes: requested bytes; 0 for a hole.
    """

    address: int
    size_bytes: int
    requested_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayoutSegment:
    """One piece of memory that the allocator has from the driver.

    Attributes:
        size_bytes: the sum of its pieces.
        small: whether it belongs to the small pool.
        expandable: whether it grows, so that its size is not that of a request.
        pieces: its pieces in the order of addresses.
    """

    size_bytes: int
    small: bool
    expandable: bool
    pieces: tuple[LayoutPiece, ...]


class Fill(NamedTuple):
    """A request for a live block at an address, or with HOLE or BRIEF as its address."""

    address: int
    size_bytes: int


def fills(segments: Iterable[LayoutSegment]) -> Iterator[Fill]:
    """Yield requests that make these segments in an empty allocator."""
    for segment in segments:
        if segment.expandable:
            yield from (Fill(each.address, each.requested_bytes) for each in segment.pieces if each.address)
            continue
        yield Fill(BRIEF, SMALL_BYTES if segment.small else segment.size_bytes)
        last = len(segment.pieces) - 1
        for index, piece in enumerate(segment.pieces):
            if piece.address:
                yield Fill(piece.address, _request(piece, at_end=index == last and not segment.small))
            else:
                yield from (Fill(HOLE, part) for part in _parts(piece.size_bytes, segment))


def _request(block: LayoutPiece, *, at_end: bool) -> int:
    """Return the request that gives a block its size: a tail that was too small to split off is requested too."""
    splits = block.size_bytes - block.requested_bytes >= MIN_BLOCK_BYTES
    return block.size_bytes if splits and not at_end else block.requested_bytes


def _parts(size_bytes: int, segment: LayoutSegment) -> Iterator[int]:
    """Yield a hole as requests that the segment's pool serves."""
    most = SMALL_BYTES if segment.small else size_bytes
    while size_bytes:
        part = min(most, size_bytes)
        yield part
        size_bytes -= part
