"""Log of a replay: frequent figures have an entry per event, rare ones an entry per change."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple


class ReservedChange(NamedTuple):
    """A change of the reserved bytes during one event; events are numbered from 0."""

    event: int
    size_bytes: int
    segments: int
    large: bool


class HeldBlock(NamedTuple):
    """A block freed while other streams still use it (both sizes positive), or released later (both negative)."""

    event: int
    block_bytes: int
    requested_bytes: int


@dataclass(slots=True)
class Log:
    """Figures of the events so far.

    `blocks` and `requested` grow by one entry per event; their length is the number of the current event.

    Attributes:
        blocks: bytes of the block handed out (positive) or freed (negative), else 0.
        requested: the same in requested bytes.
        held: blocks on their way from freed to free.
        reserved: changes of the reserved bytes, in order.
        retries: events at which an allocation was tried again with the cache emptied; once per retry.
        failed: events that ran out of memory.
    """

    blocks: list[int] = field(default_factory=list[int])
    requested: list[int] = field(default_factory=list[int])
    held: list[HeldBlock] = field(default_factory=list[HeldBlock])
    reserved: list[ReservedChange] = field(default_factory=list[ReservedChange])
    retries: list[int] = field(default_factory=list[int])
    failed: list[int] = field(default_factory=list[int])

    def copied(self) -> Log:
        """Return a copy that grows on its own."""
        return Log(*(getattr(self, each.name).copy() for each in fields(self)))
