"""Private torch symbols of CUDA's caching allocator. Checked on 2.11.0 (its CUDA build, on the rig).

Also the copy function of the CUDA runtime that torch has loaded: torch's own takes five times as long to enqueue.
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
"""Values of cudaMemcpyKind."""

OF_RUNS = "expandable_segments:False,large_segment_size_mb:20"
"""Defaults of the allocator's settings that a run changes."""

MemcpyAsync = Callable[[int, int, int, int, int], int]
"""(to address, from address, bytes, kind, stream) -> 0, or a cudaError."""


@cache
def memcpy_async() -> MemcpyAsync:
    """Return `cudaMemcpyAsync` of the CUDA runtime that torch runs on.

    `Tensor.copy_` needs the stream made current and tensors of bytes on both sides. A copy, unlike a kernel, may go to
    a stream of another device than the current one (CUDA Programming Guide, multi-device system).
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
    """Return the base class of torch.cuda.Event, which is faster; a build without CUDA has none."""
    return torch._C._CudaEventBase


def memory_history_on() -> bool:
    """Tell whether the caching allocator of CUDA keeps a history; no public query exists."""
    return torch._C._cuda_isHistoryEnabled()


def keep_memory_history(*, on: bool) -> None:
    """Begin or end the allocator's history, without stacks. torch's documents name this private function."""
    torch.cuda.memory._record_memory_history(enabled="all" if on else None, context=None, max_entries=1 << 22)


def allocator_of(alloc: Any, free: Any) -> Any:
    """Make an allocator of segments for a torch.cuda.MemPool from two C functions of ctypes.

    `torch.cuda.memory.CUDAPluggableAllocator`, its public name, takes the functions of a shared library by name alone.

    Args:
        alloc: (size, device, stream) -> address; 0 if there is none.
        free: (address, size, device, stream).
    """
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (alloc, free)]
    return torch._C._cuda_customAllocator(*addresses)


def memory_snapshot() -> Any:
    """Return segments, blocks and history of the caching allocator; only the private function has requested sizes."""
    return torch.cuda.memory._snapshot()


def allocator_text() -> str:
    """Return the settings that CUDA's caching allocator has now, as given to it last."""
    found = memory_snapshot().get("allocator_settings", {})
    return str(found.get("PYTORCH_CUDA_ALLOC_CONF", ""))


def set_allocator(text: str) -> bool:
    """Give CUDA's caching allocator other settings for the segments that it makes from now on.

    A setting that `text` does not name keeps its value, but those that runs change get their defaults. Returns whether
    this torch can do so.
    """
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        return False
    change(OF_RUNS)  # by a call of its own, as `allocator_text` returns what was given last
    change(text)
    return True


def compiler_graphs(device: torch.device) -> bool:
    """Tell whether compiled code of this thread is captured as CUDA graphs on a device."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None or device.type != "cuda":
        return False
    return trees.get_manager(device.index, create_if_none_exists=False) is not None
