"""The rules of the allocator once more, as plainly as can be: lists that are searched from end to end.

Default settings and max_split_size_mb, several streams, a capacity; segments lie at the lowest free address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 2**20


@dataclass(eq=False)
class Piece:
    size: int
    requested: int = 0
    state: str = "free"  # or "used", "held"
    streams: set[int] = field(default_factory=set[int])


@dataclass(eq=False)
class Segment:
    address: int
    stream: int
    large: bool
    pieces: list[Piece]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Reference:
    def __init__(self, capacity_bytes: int, max_split_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.max_split_bytes = max_split_bytes
        self.segments: list[Segment] = []
        self.live: dict[Any, Piece] = {}
        self.retries = 0

    def pieces(self, *states: str) -> list[Piece]:
        return [piece for segment in self.segments for piece in segment.pieces if piece.state in states]

    def event(self, event: tuple[Any, ...]) -> tuple[int, ...]:
        """(out of memory, allocated, reserved, active, requested, segments, retries) after one event."""
        what, *rest = event
        failed = False
        if what == "alloc":
            failed = not self.alloc(*rest)
        elif what == "free":
            self.free(rest[0])
        elif what == "record_stream":
            if rest[0] in self.live:
                self.live[rest[0]].streams.add(rest[1])
        elif what == "empty_cache":
            self.empty_cache()
        used, active = self.pieces("used"), self.pieces("used", "held")
        return (
            failed,
            sum(piece.size for piece in used),
            sum(segment.size for segment in self.segments),
            sum(piece.size for piece in active),
            sum(piece.requested for piece in active),
            len(self.segments),
            self.retries,
        )

    def alloc(self, key: Any, size: int, stream: int) -> bool:
        if size == 0:
            return True
        self.let_go()
        rounded = -(-size // 512) * 512
        piece = self.find(rounded, stream) or self.new(rounded, stream)
        if piece is None and self.max_split_bytes and self.give_back_oversize(rounded, stream):
            piece = self.new(rounded, stream)
        if piece is None:
            self.empty_cache()
            self.retries += 1
            piece = self.new(rounded, stream)
        if piece is None:
            return False
        segment = next(segment for segment in self.segments if piece in segment.pieces)
        left = piece.size - rounded
        may_split = not segment.large or not self.max_split_bytes or rounded < self.max_split_bytes
        if may_split and left >= (MIB + 512 if segment.large else 512):
            segment.pieces.insert(segment.pieces.index(piece) + 1, Piece(left))
            piece.size = rounded
        piece.state, piece.requested, piece.streams = "used", size, set()
        self.live[key] = piece
        return True

    def find(self, rounded: int, stream: int) -> Piece | None:
        found: list[tuple[int, int, Piece]] = []
        for segment in self.segments:
            address = segment.address
            for piece in segment.pieces:
                fits = piece.state == "free" and piece.size >= rounded
                if fits and segment.stream == stream and segment.large == (rounded > MIB):
                    found.append((piece.size, address, piece))
                address += piece.size
        if not found:
            return None
        size, _, piece = min(found, key=lambda entry: entry[:2])
        border = self.max_split_bytes
        if border and rounded < border <= size:
            return None
        if border and rounded >= border and size >= rounded + 20 * MIB:
            return None
        return piece

    def new(self, rounded: int, stream: int) -> Piece | None:
        if rounded <= MIB:
            size = 2 * MIB
        elif rounded < 10 * MIB:
            size = 20 * MIB
        else:
            size = -(-rounded // (2 * MIB)) * 2 * MIB
        if sum(segment.size for segment in self.segments) + size > self.capacity_bytes:
            return None
        address = 0
        for segment in sorted(self.segments, key=lambda segment: segment.address):
            if segment.address - address >= size:
                break
            address = segment.address + segment.size
        self.segments.append(Segment(address, stream, rounded > MIB, [Piece(size)]))
        return self.segments[-1].pieces[0]

    def free(self, key: Any) -> None:
        piece = self.live.pop(key, None)
        if piece is None:
            return
        segment = next(segment for segment in self.segments if piece in segment.pieces)
        piece.state = "held" if piece.streams - {segment.stream} else "free"
        self.merge()

    def merge(self) -> None:
        for segment in self.segments:
            whole: list[Piece] = []
            for piece in segment.pieces:
                if whole and whole[-1].state == piece.state == "free":
                    whole[-1].size += piece.size
                else:
                    whole.append(piece)
            segment.pieces = whole

    def let_go(self) -> None:
        for piece in self.pieces("held"):
            piece.state = "free"
        self.merge()

    def empty_cache(self) -> None:
        self.let_go()
        self.segments = [s for s in self.segments if len(s.pieces) > 1 or s.pieces[0].state != "free"]

    def give_back_oversize(self, rounded: int, stream: int) -> bool:
        needed = max(rounded, self.max_split_bytes)
        free = [s for s in self.segments if s.stream == stream and s.large == (rounded > MIB)]
        free = [
            s for s in free if len(s.pieces) == 1 and s.pieces[0].state == "free" and s.size >= self.max_split_bytes
        ]
        enough = sorted((s for s in free if s.size >= needed), key=lambda s: (s.size, s.address))
        if enough:
            self.segments.remove(enough[0])
            return True
        released = 0
        for segment in sorted(free, key=lambda s: (-s.size, -s.address)):
            if released >= needed:
                break
            released += segment.size
            self.segments.remove(segment)
        return released >= needed
