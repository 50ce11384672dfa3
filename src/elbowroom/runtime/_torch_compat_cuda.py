"""Private torch symbols that ask the caching allocator of CUDA. Checked on 2.11.0 (its CUDA build, on the rig)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def memory_history_on() -> bool:
    """Whether the caching allocator of CUDA keeps a history; no public query exists."""
    return torch._C._cuda_isHistoryEnabled()


def keep_memory_history(*, on: bool) -> None:
    """Begin or end that history, without stacks; torch's documents name this function, and it has no public name."""
    torch.cuda.memory._record_memory_history(enabled="all" if on else None, context=None, max_entries=1 << 22)


def allocator_of(alloc: Any, free: Any) -> Any:
    """An allocator of segments for a torch.cuda.MemPool, of two C functions that ctypes has.

    `torch.cuda.memory.CUDAPluggableAllocator`, its public name, takes the functions of a shared library by name alone.

    Args:
        alloc: (size, device, stream) -> address, 0 where there is none.
        free: (address, size, device, stream).
    """
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (alloc, free)]
    return torch._C._cuda_customAllocator(*addresses)


def memory_snapshot() -> Any:
    """Segments, blocks and the history of the caching allocator; only the private one has requested sizes."""
    return torch.cuda.memory._snapshot()
