"""Machine: what the hardware can do. Knows nothing of the model."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

from elbowroom import rules
from elbowroom.errors import TierFailed, UsageError
from elbowroom.files import Filed
from elbowroom.machine_probe import DiskRates, measure_disk, measure_memory
from elbowroom.ram import capacity_bytes, free_bytes

TierName = Literal["device", "host", "disk"]
TIERS: tuple[TierName, ...] = ("device", "host", "disk")

ASSUMED_DISK = DiskRates(out_bytes_per_s=2**30, back_bytes_per_s=2**30, latency_ns=100_000, direct=False)
"""Taken for a disk that was not measured: 1 GiB/s each way, as a slow NVMe drive."""

__all__ = ["ASSUMED_DISK", "TIERS", "Link", "Machine", "Tier", "TierName", "free_bytes"]


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

    @classmethod
    def here(cls, *, measure: bool = False, spill_dir: str | os.PathLike[str] | None = None) -> Self:
        """This computer without an accelerator: RAM is the device tier, the disk is the tier below it.

        The device's capacity is the RAM this process may hold (cgroup and resource limits counted), the disk's is what
        is free now. Rates are `ASSUMED_DISK` and the memory's is 0, unless they are measured.

        Args:
            measure: write and read 256 MiB in `spill_dir`, and copy in memory, to have the real rates; about a second.
            spill_dir: directory of the disk tier; TMPDIR or the system's temporary directory where None.

        Raises:
            TierFull, TierFailed: the directory has no room, or cannot be used.
        """
        directory = os.fspath(spill_dir or tempfile.gettempdir())
        try:
            disk_bytes = shutil.disk_usage(directory).free
        except OSError as problem:
            raise TierFailed(
                f"disk tier: {directory} cannot be used: {problem.strerror}; name another directory", tier="disk"
            ) from problem
        rates = measure_disk(directory) if measure else ASSUMED_DISK
        link = Link(
            upper="device",
            lower="disk",
            out_bytes_per_s=rates.out_bytes_per_s,
            back_bytes_per_s=rates.back_bytes_per_s,
            latency_ns=rates.latency_ns,
        )
        return cls(
            name="here",
            tiers=(Tier(name="device", capacity_bytes=capacity_bytes()), Tier(name="disk", capacity_bytes=disk_bytes)),
            links=(link,),
            memory_bytes_per_s=measure_memory() if measure else 0,
        )

    @classmethod
    def of(cls, name: str) -> Self:
        """A machine by name.

        Raises:
            UsageError: there is none of this name.
        """
        if name != "here":
            raise UsageError(
                f"machine: given {rules.shown(name)}; allowed is 'here' as long as there is no database of GPUs; "
                "describe another machine in a file and read it with Machine.load(path)"
            )
        return cls.here()

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
