"""Expandable segments: turned on for the time of a run, for the memory that the caching allocator asks for in it.

Note: [Expandable segments]
A segment of a fixed size that holds one small block that stays serves no larger block, and cannot go back to the
driver. Steps that swap make and free blocks of all sizes, so much of what is reserved is of that kind. An expandable
segment is a range of addresses with memory mapped behind it page by page. Its free pages go back, so what is reserved
stays close to what is allocated. Segments that exist already stay as they are.

The user's choice stands: with `expandable_segments` in PYTORCH_ALLOC_CONF, True or False, nothing is changed.

A block that stays keeps the pages that it lies in. So the pages are made as small as torch allows whole multiples of
the driver's 2 MiB: 12 MiB in place of 20. Plans of ResNet-50 for 1,000 MiB of blocks fit a limit of 1,100 MiB then, and
of 1,160 with the default (simulated).

Reference: PyTorch documentation, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF"; cuMemMap and
CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED (CUDA Driver API).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elbowroom.torch_compat.cuda_allocator import allocator_text, set_allocator

KEY, PAGE_KEY = "expandable_segments", "large_segment_size_mb"
ON = f"{KEY}:True"
SMALL_PAGES = f"{PAGE_KEY}:12"
MAPS_MEMORY = 102
"""Value of CUdevice_attribute: the device maps memory page by page."""


@contextmanager
def expandable_segments(device: torch.device, *, allowed: bool) -> Iterator[None]:
    """Context manager in which new segments are expandable, if the device and the user's settings allow it.

    Args:
        device: a CUDA device, with its index.
        allowed: whether the run allows it; pools of another kind of memory do not.
    """
    before = allocator_text() if allowed and _is_offered(device) else KEY
    wanted = [before, ON, *([] if PAGE_KEY in before else [SMALL_PAGES])]
    if KEY in before or not set_allocator(",".join(filter(None, wanted))):
        yield
        return
    try:
        yield
    finally:
        set_allocator(before)


def _is_offered(device: torch.device) -> bool:
    """Tell whether the allocator can have expandable segments on a device."""
    if sys.platform != "linux" or torch.version.cuda is None or torch.cuda.get_allocator_backend() != "native":
        return False
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    torch.cuda.init()
    found = ctypes.c_int()
    failed = driver.cuDeviceGetAttribute(ctypes.byref(found), MAPS_MEMORY, device.index or 0)
    return not failed and bool(found.value)
