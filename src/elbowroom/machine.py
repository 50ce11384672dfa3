"""Machine: what the hardware can do. Knows nothing of the model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from elbowroom import rules
from elbowroom.files import Filed

TierName = Literal["device", "host", "disk"]
TIERS: tuple[TierName, ...] = ("device", "host", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place that holds bytes."""

    name: TierName
    capacity_bytes: int

    def __post_init__(self) -> None:
        rules.one_of("Tier.name", self.name, TIERS)
        rules.integer("Tier.capacity_bytes", self.capacity_bytes)


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

    def __post_init__(self) -> None:
        rules.one_of("Link.upper", self.upper, TIERS)
        rules.one_of("Link.lower", self.lower, TIERS)
        if TIERS.index(self.lower) <= TIERS.index(self.upper):
            rules.refuse("Link.lower", self.lower, f"a tier below '{self.upper}', in the order {', '.join(TIERS)}")
        rules.integer("Link.out_bytes_per_s", self.out_bytes_per_s, least=1)
        rules.integer("Link.back_bytes_per_s", self.back_bytes_per_s, least=1)
        rules.integer("Link.latency_ns", self.latency_ns)
        rules.integer("Link.shared_by", self.shared_by, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Filed):
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

    def __post_init__(self) -> None:
        rules.text("Machine.name", self.name)
        rules.text("Machine.allocator", self.allocator)
        rules.integer("Machine.outside_bytes", self.outside_bytes)
        rules.integer("Machine.flops_per_s", self.flops_per_s)
        rules.integer("Machine.memory_bytes_per_s", self.memory_bytes_per_s)
        rules.records("Machine.tiers", self.tiers, Tier)
        rules.records("Machine.links", self.links, Link)
        names = [tier.name for tier in self.tiers]
        if names[:1] != ["device"] or names != [name for name in TIERS if name in names]:
            rules.refuse(
                "Machine.tiers", tuple(names), "'device' first, then any of 'host', 'disk' in this order, once each"
            )
        neighbours = list(pairwise(names))
        ends = [(link.upper, link.lower) for link in self.links]
        rules.distinct("Machine.links", ends)
        for index, pair in enumerate(ends):
            if pair not in neighbours:
                rules.refuse(f"Machine.links[{index}]", pair, f"a link between neighbouring tiers, of {neighbours}")
