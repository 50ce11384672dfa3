"""What a child process measures of itself: allocated peak, resident peak, digests.

Environment variables KINETO_LOG_LEVEL=5 and TORCH_CPP_LOG_LEVEL=ERROR, set before torch is imported, keep the profiler
silent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.job import Job


def profiled_peak_bytes(job: Job) -> int:
    """Runs one step and returns the peak of allocated bytes, what was allocated before the step included.

    The profiler counts from where it starts, so the bytes held before the step are added.
    """
    held = held_bytes(job)
    return held + profiled_growth_bytes(job.step)


def profiled_growth_bytes(step: Callable[[], object]) -> int:
    """The most bytes that one call of `step` has allocated beyond what was allocated before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        step()
    allocations = sorted(_allocations(profiler), key=lambda event: event[0])
    if not allocations:
        return 0
    _, first_size, first_total = allocations[0]
    before = first_total - first_size
    return max(total for _, _, total in allocations) - before


def _allocations(profiler: profile) -> Iterator[tuple[int, int, int]]:
    """(time, bytes, total bytes after) of every CPU allocation and free."""
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    pending: list[Any] = list(results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag.name == "Allocation":
            fields = event.extra_fields
            yield event.start_time_ns, fields.alloc_size, fields.total_allocated


def held_bytes(job: Job) -> int:
    """Bytes of the distinct storages that exist between steps: parameters, gradients, buffers, optimizer state and
    all batches."""
    tensors: list[Tensor] = [*job.model.parameters(), *job.model.buffers(), *chain.from_iterable(job.batches)]
    tensors += [p.grad for p in job.model.parameters() if p.grad is not None]
    for state in job.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def resident_bytes(field: str = "VmRSS") -> int:
    """VmRSS or VmHWM (its peak since the process began) of this process, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/self/status has no field {field!r}: VmRSS and VmHWM are the known ones")


def weights_sha256(job: Job) -> str:
    """Digest of every parameter and buffer, in order."""
    digest = hashlib.sha256()
    for tensor in job.model.state_dict().values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
