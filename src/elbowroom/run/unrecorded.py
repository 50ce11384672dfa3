"""What a step holds that cannot be recorded, as torch's profiler is in the user's own use.

Computes: what is allocated at each place where a run has control (saves, reads, borders of optimizers' steps), and that
with what is away there, which is what keeping everything takes. In RAM the C library says what it has handed out.
Ignores: what comes and goes between two such places, inside an op or between two that save nothing: a lower bound.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, final

import torch

from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.executor import Executor


class _Mallinfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later; see mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


@cache
def _mallinfo() -> Callable[[], _Mallinfo] | None:
    """mallinfo2 of the C library; None where it has none."""
    found: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _Mallinfo
    return found


def handed_out_bytes() -> int:
    """What malloc has handed out and not got back; 0 where the C library does not say."""
    ask = _mallinfo()
    if ask is None:
        return 0
    found = ask()
    return found.uordblks + found.hblkhd


@final
class Levels:
    """Of one step, from its begin on.

    Args:
        executor: what is away is known to it.

    Attributes:
        held_bytes: the most that was allocated.
        keep_all_bytes: the most that would have been if nothing had been away.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._device = executor.device
        self._before_bytes = 0 if self._device.type == "cuda" else live_ram_bytes() - handed_out_bytes()
        self.held_bytes = self.keep_all_bytes = 0
        self.tick()

    def tick(self) -> None:
        """Look at what is held now."""
        now_bytes = self._before_bytes + self._allocated_bytes()
        self.held_bytes = max(self.held_bytes, now_bytes)
        self.keep_all_bytes = max(self.keep_all_bytes, now_bytes + self._executor.tier.held_bytes)

    def _allocated_bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return handed_out_bytes()
