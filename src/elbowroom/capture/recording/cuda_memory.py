"""CUDA memory: facts of CUDA's caching allocator that torch's profiler lacks: requested sizes, and earlier blocks.

The profiler has the bytes of each block: the request rounded up, and up to 1 MiB more if a block was too small to
split. It misses a few frees. The allocator's history has all requests, and is switched on for the recording. If the
user's own history is on, it is not touched, and the blocks' bytes are taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch

from elbowroom.capture.recording.allocator_layout import HOLE, LayoutPiece, LayoutSegment
from elbowroom.engine.tiers.managed import pools
from elbowroom.torch_compat.cuda_allocator import keep_memory_history, memory_history_on, memory_snapshot

DEFAULT_STREAM = 0
SHARED_POOL = (0, 0)
"""Id of the shared pool; pools of CUDA graphs have others, and their memory is not for other blocks."""

_WORDS = {"alloc": False, "free_requested": True}


class Request(NamedTuple):
    """An allocation, or the free of one. Times are on the profiler's clock, to the microsecond."""

    address: int
    freed: bool
    size_bytes: int
    at_ns: int


@final
class CudaMemory:
    """The history of one device between `start` and `stop`.

    Args:
        device: the device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index or 0
        self._ours = False

    def start(self) -> None:
        """Begin to note requests."""
        self._ours = not memory_history_on()
        if self._ours:
            keep_memory_history(on=True)

    def stop(self) -> list[Request]:
        """Stop and return the requests in order; none if the user's own history is on."""
        if not self._ours:
            return []
        found = [each for each in memory_snapshot()["device_traces"][self._index] if each["action"] in _WORDS]
        keep_memory_history(on=False)
        return [Request(e["addr"], _WORDS[e["action"]], e["size"], 1000 * e["time_us"]) for e in found]

    def segments(self) -> list[LayoutSegment]:
        """Return all segments of the device that the allocator holds, by address."""
        found = [each for each in memory_snapshot()["segments"] if each["device"] == self._index]
        return [_segment(each) for each in sorted(found, key=lambda each: each["address"])]


def _segment(found: dict[str, Any]) -> LayoutSegment:
    pool = found.get("segment_pool_id", SHARED_POOL)
    managed = pool in pools  # only the used part of such a pool belongs to a training
    ours = found["stream"] == DEFAULT_STREAM and (pool == SHARED_POOL or managed)
    is_expandable = bool(found["is_expandable"])
    return LayoutSegment(
        address=found["address"],
        size_bytes=found["total_size"],
        small=found["segment_type"] == "small",
        kind="others" if managed or (is_expandable and not ours) else "expandable" if is_expandable else "fixed",
        pieces=tuple(_piece(block, ours=ours) for block in found["blocks"]),
    )


def _piece(block: dict[str, Any], *, ours: bool) -> LayoutPiece:
    """Make a piece; a free block is a hole only if later blocks of the default stream may go there."""
    if block["state"] == "inactive" and ours:
        return LayoutPiece(HOLE, block["size"])
    return LayoutPiece(block["address"], block["size"], block["requested_size"] or block["size"])
