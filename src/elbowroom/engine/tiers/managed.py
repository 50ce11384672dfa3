"""Managed memory: host memory that a CUDA device reads in place, for what a training needs beyond the device's budget.

Note: [Managed]
torch's caching allocator can have pools of memory of another kind. It tries one sort of pool (`use_on_oom`) when the
driver or a limit refuses it more. Every thread does so, those of backward too. Such a pool is filled once, at the
beginning, with the allowed managed bytes. The allocator's limit is set to these and the budget together. So the
device's own memory holds no more than the budget, and further requests go to the pool. When that is full too, torch
raises its OutOfMemoryError. The driver is advised to keep managed memory on the host. The device reaches it there over
the link at each access. That is slow, and takes no device memory.

- The pool's memory belongs to one stream, as all memory of the allocator does: the one that is current when the run
  begins. Work on another stream gets none.
- What is in the pool when the run ends stays there as long as it is used. An unused segment goes back to the driver
  when torch or its user empties the cache. No later request gets memory of the pool.
- The allocator asks for segments while it holds its lock. A Python function called then could wait for Python's lock.
  The thread with that lock could wait for the allocator's. So the segments are made beforehand. Functions of C alone
  hand them out while Python's lock is held, and the driver's own function frees them.
- If budget and managed bytes are more than the device has, no limit can be set: the driver's refusal is the limit. A
  warning says so when the run begins, as the budget may then be exceeded.

Reference: torch.cuda.MemPool (PyTorch documentation); cuMemAllocManaged, cuMemAdvise (CUDA Driver API).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES, SMALL_BYTES
from elbowroom.allocator.settings import set_in
from elbowroom.errors import TierFull, UsageError
from elbowroom.notices import warn
from elbowroom.torch_compat.cuda_allocator import allocator_of
from elbowroom.units import format_bytes

MIB = 1 << 20
"""One mebibyte, in bytes."""
SMALL_SHARE, SMALL_MOST = 8, 64
"""1/SMALL_SHARE of the managed bytes is for small requests, in at most SMALL_MOST segments."""
LEAST_MANAGED_BYTES = 32 * MIB
IS_MANAGED, IS_CONCURRENT = 83, 89
"""Values of CUdevice_attribute: managed memory exists; host and device may use it at the same time (not on WSL)."""
ATTACH_GLOBAL, PREFER_LOCATION, ACCESSED_BY, HOST = 1, 3, 5, -1
"""Values of CUmemAttach_flags and CUmem_advise, and the device number of the host."""

pools: set[tuple[int, int]] = set()
"""Pools of managed memory filled in this process. Their free bytes are a reserve: a training gets them only when the
device runs out of other memory."""
_kept: list[Any] = []
"""Objects that the allocator calls without a reference of its own: kept alive as long as the process."""


@contextmanager
def managed_memory(device: torch.device, budget_bytes: int, managed_bytes: int) -> Iterator[None]:
    """Context manager around a run: what does not fit into its budget may lie in managed memory.

    Args:
        device: the device, with its index.
        budget_bytes: budget of the device.
        managed_bytes: the most managed bytes beyond the budget; 0 for none.

    Raises:
        UsageError: the device, torch's settings or the size do not allow it.
        TierFull: the host has no room for the managed bytes.
    """
    if not managed_bytes:
        yield
        return
    sizes = _segments(managed_bytes)
    _check(device, managed_bytes)
    pool = _filled(device, sizes)
    share = torch.cuda.get_per_process_memory_fraction(device)
    limit_bytes, total_bytes = budget_bytes + sum(sizes), torch.cuda.get_device_properties(device).total_memory
    if budget_bytes < total_bytes < limit_bytes:
        _warn_of_no_limit(device, budget_bytes, sum(sizes), total_bytes)
    torch.cuda.set_per_process_memory_fraction(min(share, limit_bytes / total_bytes), device)
    try:
        yield
    finally:
        with suppress(torch.AcceleratorError):  # a device that is lost has no limit
            torch.cuda.set_per_process_memory_fraction(share, device)
        del pool  # memory in use stays with its tensors, and nothing else gets it


def _warn_of_no_limit(device: torch.device, budget_bytes: int, managed_bytes: int, total_bytes: int) -> None:
    warn(
        f"elbowroom: a budget of {format_bytes(budget_bytes)} and {format_bytes(managed_bytes)} of managed memory are "
        f"more than the {format_bytes(total_bytes)} of {device}: torch's limit counts both and cannot be above that, "
        "so the device may hold more than the budget before managed memory begins. Give managed="
        f"{(total_bytes - budget_bytes) // MIB}MiB or less for a budget that is held",
    )


def _segments(managed_bytes: int) -> list[int]:
    """Return the sizes of the segments, the large one last."""
    if managed_bytes < LEAST_MANAGED_BYTES:
        raise UsageError(
            f"within: given managed={format_bytes(managed_bytes)}; allowed are {format_bytes(LEAST_MANAGED_BYTES)} and "
            "more, as small requests have segments of their own; raise it, or leave it out"
        )
    small = min(SMALL_MOST, managed_bytes // SMALL_SHARE // SEGMENT_BYTES)
    rest_bytes = managed_bytes - small * SEGMENT_BYTES
    return [SEGMENT_BYTES] * small + [rest_bytes // SEGMENT_BYTES * SEGMENT_BYTES]


def _check(device: torch.device, managed_bytes: int) -> None:
    """Raise UsageError if the device or torch's settings do not allow managed memory."""
    driver = ctypes.CDLL("libcuda.so.1")
    found = ctypes.c_int()
    for attribute in (IS_MANAGED, IS_CONCURRENT):
        failed = driver.cuDeviceGetAttribute(ctypes.byref(found), attribute, device.index or 0)
        if failed or not found.value:
            raise UsageError(
                f"within: given managed={format_bytes(managed_bytes)} on {device}; allowed is a device that reaches "
                "managed memory while the host has it (Linux, compute capability 6.0 and more, not under WSL); leave "
                "managed out"
            )
    if torch.cuda.get_allocator_backend() != "native" or "max_split_size_mb" in set_in(os.environ):
        raise UsageError(
            f"within: given managed={format_bytes(managed_bytes)} and PYTORCH_ALLOC_CONF={set_in(os.environ)!r}; "
            "allowed is torch's own allocator without max_split_size_mb, which would not divide the managed memory; "
            "leave one of them out"
        )


def _filled(device: torch.device, sizes: Sequence[int]) -> torch.cuda.MemPool:
    """Make a pool that has segments of managed memory of these sizes, all of it free."""
    driver = ctypes.CDLL("libcuda.so.1")
    addresses = _managed(driver, device, sizes)
    give = ctypes.CFUNCTYPE(ctypes.c_void_p)(partial(next, iter(addresses), 0))
    allocator = allocator_of(give, driver.cuMemFree_v2)
    pool = torch.cuda.MemPool(allocator, use_on_oom=True)
    _kept.extend((driver, give, allocator))
    pools.add(pool.id)
    with torch.cuda.use_mem_pool(pool, device):
        # torch holds Python's lock while it makes a storage, but not a tensor. Two small requests fill a segment.
        made = [torch.UntypedStorage(SMALL_BYTES, device=device) for _ in range(2 * (len(sizes) - 1))]
        made.append(torch.UntypedStorage(sizes[-1], device=device))
    found = {segment["address"]: segment["total_size"] for segment in pool.snapshot()}
    assert found == dict(zip(addresses, sizes, strict=True)), f"the allocator asked for {sorted(found.values())}"
    return pool


def _managed(driver: Any, device: torch.device, sizes: Sequence[int]) -> list[int]:
    """Allocate managed memory of these sizes, on the host and reached by the device. Returns the addresses."""
    torch.cuda.synchronize(device)  # makes the device's context that of this thread
    found: list[int] = []
    for size_bytes in sizes:
        address = ctypes.c_uint64()
        if driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size_bytes), ATTACH_GLOBAL):
            for each in found:
                driver.cuMemFree_v2(ctypes.c_uint64(each))
            raise TierFull(
                f"managed memory: the driver refuses {format_bytes(size_bytes)} of {format_bytes(sum(sizes))}; free "
                "some RAM, or lower managed",
                tier="host",
            )
        found.append(address.value)
        for advice, place in ((PREFER_LOCATION, HOST), (ACCESSED_BY, device.index or 0)):
            driver.cuMemAdvise(address, ctypes.c_size_t(size_bytes), advice, place)  # only advice: may be refused
    return found


def held_bytes() -> int:
    """Return the bytes of all pools of managed memory, used or not."""
    if not pools:
        return 0
    return sum(each["total_size"] for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] in pools)
