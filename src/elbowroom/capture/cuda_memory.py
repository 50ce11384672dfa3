"""What the caching allocator of CUDA knows besides torch's profiler: requested sizes, and what is there already.

The profiler tells the bytes of each block: those of the request rounded up, and up to 1 MiB more where a block was not
worth splitting. The allocator's history has the requests themselves, and is switched on for the recording. If
the user's own is on, it is left alone and the blocks' bytes are taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, final

import torch

from elbowroom.capture.layout import HOLE, Piece, Segment
from elbowroom.runtime._torch_compat import keep_memory_history, memory_history_on, memory_snapshot

DEFAULT_STREAM = 0
SHARED_POOL = (0, 0)
"""Memory of the pools of CUDA graphs is not for other blocks."""

_WORDS = {"alloc": False, "free_requested": True}


@dataclass(slots=True)
class Requests:
    """Requested bytes by (address, whether it was freed), in order."""

    sizes: dict[tuple[int, bool], deque[int]] = field(default_factory=dict[tuple[int, bool], deque[int]])

    def next(self, address: int, block_bytes: int, *, freed: bool) -> int:
        """What was requested of a block that was handed out or taken back; its own bytes where that is not known."""
        known = self.sizes.get((address, freed))
        requested = known.popleft() if known else block_bytes
        return requested if 0 < requested <= block_bytes else block_bytes


@final
class CudaMemory:
    """The history of one device between `start` and `stop`.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self._ours = False

    def start(self) -> None:
        """Begin to note requests."""
        self._ours = not memory_history_on()
        if self._ours:
            keep_memory_history(on=True)

    def stop(self) -> Requests:
        """End, and what was noted."""
        found = Requests()
        if not self._ours:
            return found
        for entry in memory_snapshot()["device_traces"][self._index]:
            freed = _WORDS.get(entry["action"])
            if freed is not None:
                found.sizes.setdefault((entry["addr"], freed), deque()).append(entry["size"])
        keep_memory_history(on=False)
        return found

    def segments(self) -> list[Segment]:
        """All the allocator holds of the device, by address."""
        found = [each for each in memory_snapshot()["segments"] if each["device"] == self._index]
        return [_segment(each) for each in sorted(found, key=lambda each: each["address"])]


def _segment(found: dict[str, Any]) -> Segment:
    ours = found["stream"] == DEFAULT_STREAM and found.get("segment_pool_id", SHARED_POOL) == SHARED_POOL
    return Segment(
        size_bytes=found["total_size"],
        small=found["segment_type"] == "small",
        expandable=bool(found["is_expandable"]),
        pieces=tuple(_piece(block, ours=ours) for block in found["blocks"]),
    )


def _piece(block: dict[str, Any], *, ours: bool) -> Piece:
    """A hole only where later blocks of the default stream may go."""
    if block["state"] == "inactive" and ours:
        return Piece(HOLE, block["size"])
    return Piece(block["address"], block["size"], block["requested_size"] or block["size"])
