"""Memory of a step that is not recorded: one without a plan, or any while the user runs torch's profiler.

Computes: the allocated bytes at each place where a run has control (saves, reads, borders of optimizers' steps). These
and the bytes that are away there are what keeping everything takes. In RAM the C library says what it has handed out.
Ignores: what comes and goes between two such places, inside an op or between ops that save nothing. So both figures are
lower bounds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, final

import torch

from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.executor import Executor
from elbowroom.engine.residence import CODE_BYTES


class _Mallinfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later; see mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


@cache
def _mallinfo() -> Callable[[], _Mallinfo] | None:
    """Return mallinfo2 of the C library; None if it has none."""
    found: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _Mallinfo
    return found


def handed_out_bytes() -> int:
    """Return the bytes that malloc has handed out and not got back; 0 if the C library does not say."""
    ask = _mallinfo()
    if ask is None:
        return 0
    found = ask()
    return found.uordblks + found.hblkhd


@final
class Levels:
    """Memory of one step, from its beginning on.

    Args:
        executor: knows the bytes that are away.

    Attributes:
        held_bytes: the most bytes that were allocated.
        keep_all_bytes: the most bytes that would have been allocated with nothing away.
        passed_bytes: bytes that were saved or read since the last look, if the run counts them.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._device = executor.device
        self._before_bytes = 0 if self._device.type == "cuda" else live_ram_bytes() - handed_out_bytes()
        self.held_bytes = self.keep_all_bytes = self.passed_bytes = 0
        self.tick()

    def sure_bytes(self, budget_bytes: int) -> int:
        """Return the bytes that storages have held for certain: in RAM, libraries may hold what is beyond a budget."""
        if self._device.type == "cuda":
            return self.held_bytes
        return max(min(self.held_bytes, budget_bytes), self.held_bytes - CODE_BYTES)

    def tick(self) -> None:
        """Look at the bytes that are held now."""
        self.passed_bytes = 0
        now_bytes = self._before_bytes + self._allocated_bytes()
        self.held_bytes = max(self.held_bytes, now_bytes)
        self.keep_all_bytes = max(self.keep_all_bytes, now_bytes + self._executor.tier.held_bytes)

    def _allocated_bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return handed_out_bytes()
