"""The segments of a caching allocator as a sequence of events: what leaves an empty allocator just as it is found.

A trace that begins in the middle of a training must tell what the allocator holds by then, and where: free memory
between blocks that stay is reserved, and later blocks go there. So each segment is made by one request of its size,
which is freed; then its blocks and its holes are asked for in the order of their addresses, while nothing else is free.
In the end the holes are freed.

Reference: the rules of the allocator in elbowroom/allocator. Ignored: expandable segments, whose blocks are told alone;
free memory of other streams counts as held, as only these can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

SMALL_BYTES = 1 << 20
"""The largest request of the pool of small ones, whose segments have twice the size."""


HOLE, BRIEF = 0, -1
"""Addresses of fills that are no live block: freed once all segments are made, and freed at once."""


class LayoutPiece(NamedTuple):
    """Part of a segment, block or hole.

    Attributes:
        address: where it begins; HOLE for a hole.
        size_bytes: of all of it, the rounding of a block included.
        requested_bytes: what was asked for; 0 for a hole.
    """

    address: int
    size_bytes: int
    requested_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayoutSegment:
    """One piece of memory that the allocator has of the driver.

    Attributes:
        size_bytes: the sum of its pieces.
        small: of the pool of small requests.
        expandable: grows, so its size is not that of a request.
        pieces: in the order of addresses.
    """

    size_bytes: int
    small: bool
    expandable: bool
    pieces: tuple[LayoutPiece, ...]


class Fill(NamedTuple):
    """A request of a live block, or HOLE or BRIEF in the place of its address."""

    address: int
    size_bytes: int


def fills(segments: Iterable[LayoutSegment]) -> Iterator[Fill]:
    """Requests that make these segments in an empty allocator."""
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
    """What to ask for so that the block gets its size: a tail that was not worth splitting off is asked for too."""
    return block.requested_bytes if at_end or block.size_bytes - block.requested_bytes < 512 else block.size_bytes


def _parts(size_bytes: int, segment: LayoutSegment) -> Iterator[int]:
    """A hole as requests that the segment's pool serves."""
    most = SMALL_BYTES if segment.small else size_bytes
    while size_bytes:
        part = min(most, size_bytes)
        yield part
        size_bytes -= part
