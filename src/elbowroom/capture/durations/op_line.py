"""Op line: what is known of an op that was captured or recorded, and what its duration is computed from."""

from __future__ import annotations

from typing import Any, NamedTuple

from elbowroom.trace import Phase


class OpLine(NamedTuple):
    """One op: see `elbowroom.trace.Op`.

    `arguments` are by position: shapes, flags, numbers, lists of these, and None for the rest. `dtype` is that of the
    first tensor among them. `moved_bytes` are those of the tensors that it reads and makes. `form` is that of
    `Compared`, `source_line` a number of `SourceLines`. `stream` is a number of torch's, `exchange` the group and
    the bytes of a collective, and the other rank of a message.
    """

    name: str
    module: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    arguments: tuple[Any, ...] = ()
    dtype: str = ""
    moved_bytes: int = 0
    form: str = ""
    source_line: int | None = None
    stream: int = 0
    exchange: tuple[int, int, int | None] | None = None
