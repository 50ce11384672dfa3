"""Machine: what the hardware can do. Knows nothing of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TierName = Literal["device", "host", "disk"]
TIERS: tuple[TierName, ...] = ("device", "host", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place that holds bytes."""

    name: TierName
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way between two tiers; each direction is a lane of its own that moves one storage at a time.

    Attributes:
        upper: the tier nearer to the compute.
        lower: the tier below it.
        out_bytes_per_s: rate from upper to lower.
        back_bytes_per_s: rate from lower to upper.
        latency_ns: fixed cost of one transfer.
        shared_by: processes among which the rate is divided.
    """

    upper: TierName
    lower: TierName
    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int
    shared_by: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer, or one device of it.

    Attributes:
        name: "here" or a name of the GPU database.
        tiers: fastest first; the first is "device" (RAM on a machine without an accelerator).
        links: between neighbouring tiers.
        outside_bytes: device memory taken outside the allocator (interpreter, libraries, context).
        allocator: "exact" where every block is one request (the CPU), else settings as in PYTORCH_ALLOC_CONF.
        flops_per_s: sustained compute rate, 0 where unknown.
        memory_bytes_per_s: bandwidth of the device's memory, 0 where unknown.
    """

    name: str
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...]
    outside_bytes: int = 0
    allocator: str = "exact"
    flops_per_s: int = 0
    memory_bytes_per_s: int = 0
