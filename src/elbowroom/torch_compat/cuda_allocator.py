"""Private torch symbols that ask the caching allocator of CUDA. Checked on 2.11.0 (its CUDA build, on the rig).

And the copy of the CUDA runtime that torch has loaded: torch's own takes five times as long to give it to a stream.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from elbowroom.errors import UsageError

TO_HOST, TO_DEVICE = 2, 1
"""Of cudaMemcpyKind."""

MemcpyAsync = Callable[[int, int, int, int, int], int]
"""(to address, from address, bytes, kind, stream) -> 0, or a cudaError."""


@cache
def memcpy_async() -> MemcpyAsync:
    """The copy `cudaMemcpyAsync` of the CUDA runtime that torch runs on.

    `Tensor.copy_` takes streams made current and tensors of bytes on both sides. A copy, unlike a kernel, may be given
    to a stream of another device than the current one (CUDA Programming Guide, multi-device system).
    """
    name = f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}"
    try:
        copy = ctypes.CDLL(name).cudaMemcpyAsync
    except (OSError, AttributeError) as error:
        raise UsageError(
            f"within: given torch {torch.__version__}, which has loaded no {name} ({error}); allowed are builds on "
            "NVIDIA's CUDA with the runtime as a library of its own, as torch's wheels are; install one of those, or "
            "train on the CPU"
        ) from error
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    copy.restype = ctypes.c_int
    return copy


def event_type() -> Any:
    """What torch.cuda.Event derives from, which calls it by way of Python; a build without CUDA has none."""
    return torch._C._CudaEventBase


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


def compiler_graphs(device: torch.device) -> bool:
    """Whether what torch.compile has compiled for a device in this thread is captured as CUDA graphs."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or device.type != "cuda":
        return False
    return trees.get_manager(device.index, create_if_none_exists=False) is not None
