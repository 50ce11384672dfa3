"""Link probe: measure copies between a CUDA device and pinned memory of the host, timed by the device.

Limits: it copies one at a time; both directions at once, or several devices on one switch, are slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from elbowroom.errors import UsageError

PROBE_BYTES = 256 * 2**20
_COPIES = 5


class LinkRates(NamedTuple):
    """Measured rates of copies between device and host.

    Attributes:
        out_bytes_per_s: rate from device to host.
        back_bytes_per_s: rate from host to device.
        latency_ns: time of a copy of one element, waited for.
    """

    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int


def measure_link(size_bytes: int = PROBE_BYTES, index: int = 0) -> LinkRates:
    """Copy pinned memory to a CUDA device and back, a few times.

    Args:
        size_bytes: bytes of one copy; as many are allocated on the device and pinned on the host meanwhile.
        index: index of the device.

    Raises:
        UsageError: torch sees no CUDA device.
    """
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "link: torch sees no CUDA device; allowed is a build of torch for CUDA on a computer with an NVIDIA GPU; "
            "install one, or leave --measure out"
        )
    with torch.cuda.device(index):
        host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        out_ns = _least_ns(lambda: host.copy_(device, non_blocking=True))
        back_ns = _least_ns(lambda: device.copy_(host, non_blocking=True))
        latency_ns = _least_ns(lambda: device[:1].copy_(host[:1], non_blocking=True))
    return LinkRates(_rate(size_bytes, out_ns), _rate(size_bytes, back_ns), latency_ns)


def _least_ns(copy: Callable[[], object]) -> int:
    """Return the time of the shortest of a few copies, from the call to its end; the first one only warms up."""
    import torch

    durations_ns: list[int] = []
    for _ in range(1 + _COPIES):
        torch.cuda.synchronize()
        start_ns = time.perf_counter_ns()
        copy()
        torch.cuda.synchronize()
        durations_ns.append(time.perf_counter_ns() - start_ns)
    return min(durations_ns[1:])


def _rate(size_bytes: int, duration_ns: int) -> int:
    return max(1, size_bytes * 10**9 // max(1, duration_ns))
