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

Note: [Segments of a fixed size]
Where few large blocks make up most of a step, segments of a fixed size can hold less: each large block has a segment of
its own, of its size in whole 2 MiB, and no page has to be shared. The plans that hold the least take 115 MiB in an
autoencoder then, and 154 in pages; in ResNet-50 it is 1,225 and 1,091 (simulated). So a plan that is made before the
training starts is tried with both, and with smaller segments for the blocks below 10 MiB.

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
def expandable_segments(device: torch.device, *, allowed: bool) -> Iterator[tuple[str, ...]]:
    """Context manager in which new segments are expandable, if the device and the user's settings allow it.

    Yields the other settings that the run may give the allocator: Note: [Segments of a fixed size]. There are none if
    it has changed nothing. At its end the settings are what they were.

    Args:
        device: a CUDA device, with its index.
        allowed: whether the run allows it; pools of another kind of memory do not.
    """
    before = allocator_text() if allowed and _is_offered(device) else KEY
    pages = [] if PAGE_KEY in before else [SMALL_PAGES]
    if KEY in before or not set_allocator(_joined(before, ON, *pages)):
        yield ()
        return
    try:
        yield tuple(dict.fromkeys([before, _joined(before, *pages)]))
    finally:
        set_allocator(before)


def _joined(*settings: str) -> str:
    return ",".join(filter(None, settings))


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
