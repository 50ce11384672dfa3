"""Allocator layout: the segments of a caching allocator as events that bring an empty allocator into the same state.

A trace that begins in the middle of a training must have the allocator's memory by then, with its addresses. Free
memory between blocks that stay is reserved, and later blocks go there. So each segment is made by one request of its
size, which is freed. Then its blocks and holes are requested in the order of addresses, while nothing else is free. In
the end the holes are freed.

Note: [Layout of expandable segments]
Pages belong to one range of addresses per pool, with gaps where none is mapped. So a gap is requested as a hole is, and
the pages behind it go back when the cache is emptied. Next to each other, blocks then share the pages that they share
in truth. A hole too small for its pool's requests moves the blocks behind it, until a larger hole takes up the
difference.

Reference: the rules of the allocator in elbowroom/allocator. Ignored: free memory of other streams counts as held, as
only these can use it. If some segments are expandable, the holes of all others count as held: they never go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from elbowroom.allocator.blocks import MIN_BLOCK_BYTES, SMALL_BYTES

HOLE, BRIEF = 0, -1
"""Addresses of fills that are no live block. A HOLE is freed once all segments are made, a BRIEF one at once."""

EMPTIED = "emptied"
"""Path of a note of a layout after which the cache is emptied: the pages behind gaps go back."""


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
        address: where it begins.
        size_bytes: the sum of its pieces.
        small: whether it belongs to the small pool.
        kind: "fixed"; "expandable": a run of mapped pages; "others": only its blocks count, as it is for others.
        pieces: its pieces in the order of addresses.
    """

    address: int
    size_bytes: int
    small: bool
    kind: Literal["fixed", "expandable", "others"]
    pieces: tuple[LayoutPiece, ...]


class Fill(NamedTuple):
    """A request for a live block at an address, or with HOLE or BRIEF as its address."""

    address: int
    size_bytes: int


def fills(segments: Iterable[LayoutSegment]) -> Iterator[Fill]:
    """Yield requests that make these segments in an empty allocator.

    Args:
        segments: all segments of a device, in the order of addresses.
    """
    segments = list(segments)
    expandable = [each for each in segments if each.kind == "expandable"]
    for segment in segments:
        if segment.kind == "fixed" and not expandable:
            yield from _fixed(segment)
        elif segment.kind != "expandable":
            yield from _held(segment, holes=segment.kind == "fixed")
    for small in (True, False):
        yield from _pages([each for each in expandable if each.small is small], small=small)


def _held(segment: LayoutSegment, *, holes: bool) -> Iterator[Fill]:
    """Yield a request for each block, and for each of the holes if they count as held."""
    address = segment.address
    for piece in segment.pieces:
        if piece.address or holes:
            yield Fill(address, piece.requested_bytes or piece.size_bytes)
        address += piece.size_bytes


def _fixed(segment: LayoutSegment) -> Iterator[Fill]:
    yield Fill(BRIEF, SMALL_BYTES if segment.small else segment.size_bytes)
    last = len(segment.pieces) - 1
    for index, piece in enumerate(segment.pieces):
        if piece.address:
            yield Fill(piece.address, _request(piece, at_end=index == last and not segment.small))
        else:
            yield from (Fill(HOLE, part) for part in _parts(piece.size_bytes, small=segment.small))


def _pages(runs: list[LayoutSegment], *, small: bool) -> Iterator[Fill]:
    """Yield requests for the runs of pages of one pool: see Note: [Layout of expandable segments]."""
    least_bytes = MIN_BLOCK_BYTES if small else SMALL_BYTES + MIN_BLOCK_BYTES
    free_bytes, end = 0, runs[0].address if runs else 0
    for run in runs:
        free_bytes += run.address - end
        end = run.address + run.size_bytes
        for is_block, pieces in groupby(run.pieces, lambda piece: piece.address != HOLE):
            if not is_block:
                free_bytes += sum(each.size_bytes for each in pieces)
                continue
            if free_bytes >= least_bytes:
                yield from (Fill(HOLE, part) for part in _parts(free_bytes, small=small))
                free_bytes = 0
            yield from (Fill(each.address, each.requested_bytes) for each in pieces)


def _request(block: LayoutPiece, *, at_end: bool) -> int:
    """Return the request that gives a block its size: a tail that was too small to split off is requested too."""
    splits = block.size_bytes - block.requested_bytes >= MIN_BLOCK_BYTES
    return block.size_bytes if splits and not at_end else block.requested_bytes


def _parts(size_bytes: int, *, small: bool) -> Iterator[int]:
    """Yield a hole as requests that the segment's pool serves."""
    most = SMALL_BYTES if small else size_bytes
    while size_bytes:
        part = min(most, size_bytes)
        yield part
        size_bytes -= part
