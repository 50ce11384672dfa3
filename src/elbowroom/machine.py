"""Machine: what the hardware can do. It has nothing about the model."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self, cast

from elbowroom.errors import TierFailed, UsageError
from elbowroom.files import field_rules as rules
from elbowroom.files.record_files import Filed
from elbowroom.hardware import gpus, nvml, outside_measured
from elbowroom.hardware.disk_probe import DiskRates, measure_disk, measure_memory
from elbowroom.hardware.gpu_table import DTYPES, GIVEN, Gpu, LinkKind
from elbowroom.hardware.outside_measured import MeasuredOutside
from elbowroom.hardware.ram import capacity_bytes, free_bytes
from elbowroom.units import format_bytes

TierName = Literal["device", "host", "disk"]
Loading = Literal["lazy", "eager"]
"""When CUDA loads kernels, as in CUDA_MODULE_LOADING: at their first use (since 11.7), or all at once."""
TIERS: tuple[TierName, ...] = ("device", "host", "disk")

ASSUMED_DISK = DiskRates(out_bytes_per_s=2**30, back_bytes_per_s=2**30, latency_ns=100_000, direct=False)
"""Rates of a disk that was not measured: 1 GiB/s each way, as a slow NVMe drive."""

ASSUMED_LINK = "pcie-3-x16"
"""Link to the host if it is not known: the slowest that current GPUs have."""

ASSUMED_LIBRARIES_BYTES = 250 * 2**20
ASSUMED_LIBRARIES_MOST_BYTES = 650 * 2**20
"""Bytes that cuBLAS, cuDNN and kernels add to a context, if only the context is known. That is so for a user's own
table, and for reports of eager loading. Otherwise the sum is known by the GPU's generation (docs/machines.md)."""

__all__ = ["ASSUMED_DISK", "TIERS", "Link", "Loading", "Machine", "Rate", "Tier", "TierName", "free_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One place that holds bytes.

    Attributes:
        name: device, host or disk; the device is RAM on a machine without an accelerator.
        capacity_bytes: bytes that it can hold.
    """

    name: TierName
    capacity_bytes: int

    def __post_init__(self) -> None:
        rules.one_of("Tier.name", self.name, TIERS)
        rules.integer("Tier.capacity_bytes", self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connection between two tiers; each direction is a lane that moves one storage at a time.

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
class Rate:
    """Operations per second on one dtype, dense: without what sparsity would add.

    Attributes:
        dtype: element type, such as "float16".
        flops_per_s: floating point operations a second; for "int8" operations on integers a second.
    """

    dtype: str
    flops_per_s: int

    def __post_init__(self) -> None:
        rules.one_of("Rate.dtype", self.dtype, DTYPES)
        rules.integer("Rate.flops_per_s", self.flops_per_s, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Filed):
    """A computer, or one device of it.

    Attributes:
        name: "here" or a name of the GPU database.
        tiers: fastest first; the first is "device" (RAM on a machine without an accelerator).
        links: links between neighbouring tiers; one from the device to the disk if copies to it bypass the host.
        outside_bytes: device memory taken outside the allocator (interpreter, libraries, context).
        allocator: "exact" if every block is one request (the CPU), else settings as in PYTORCH_ALLOC_CONF.
        flops_per_s: sustained compute rate, 0 if unknown; that of float32 on a GPU.
        memory_bytes_per_s: bandwidth of the device's memory, 0 if unknown.
        compute_capability: major * 10 + minor of an NVIDIA GPU, 0 on other devices.
        multiprocessors: streaming multiprocessors, 0 if unknown.
        rates: dense compute rates by dtype, as far as known.
        outside_range_bytes: least and most of `outside_bytes` if that is an estimate, else (0, 0).
        board_watts: power that the device's board may draw, 0 if unknown.
        idle_watts: power that it draws while it computes next to nothing, 0 if unknown.
    """

    name: str
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...]
    outside_bytes: int = 0
    allocator: str = "exact"
    flops_per_s: int = 0
    memory_bytes_per_s: int = 0
    compute_capability: int = 0
    multiprocessors: int = 0
    rates: tuple[Rate, ...] = ()
    outside_range_bytes: tuple[int, int] = (0, 0)
    board_watts: int = 0
    idle_watts: int = 0

    @classmethod
    def here(
        cls,
        *,
        measure: bool = False,
        spill_dir: str | os.PathLike[str] | None = None,
        device: Literal["auto", "cpu"] = "auto",
    ) -> Self:
        """Return this computer: its NVIDIA GPU above RAM and disk, or RAM above the disk if it has no GPU.

        RAM's capacity is what this process may hold (cgroup and resource limits counted). The disk's is what is free
        now. Disk rates are `ASSUMED_DISK` and the RAM's is 0, unless they are measured. A GPU is found through the
        driver, without torch. Its link is that of its PCIe generation and lanes. Figures that the driver does not
        report come from the GPU database. Bytes outside the allocator are those measured here, if they were.

        Args:
            measure: write and read 256 MiB in `spill_dir`, and copy in RAM, to get the real rates; about a second.
            spill_dir: directory of the disk tier; None for TMPDIR or the system's temporary directory.
            device: "cpu" ignores a GPU.

        Raises:
            TierFull, TierFailed: the directory has no room, or cannot be used.
            UsageError: `device` is neither of the two.
        """
        if device not in ("auto", "cpu"):
            raise UsageError(f"machine: given device={rules.shown(device)}; allowed are 'auto' and 'cpu'; take one")
        directory = os.fspath(spill_dir or tempfile.gettempdir())
        disk = Tier(name="disk", capacity_bytes=_free_disk_bytes(directory))
        rates, ram_bytes = measure_disk(directory) if measure else ASSUMED_DISK, capacity_bytes()
        found = nvml.first_device() if device == "auto" else None
        if found is not None:
            return cls._here_with(found, Tier(name="host", capacity_bytes=ram_bytes), disk, rates)
        return cls(
            name="here",
            tiers=(_device(ram_bytes), disk),
            links=(_to_disk("device", rates),),
            memory_bytes_per_s=measure_memory() if measure else 0,
        )

    @classmethod
    def _here_with(cls, found: nvml.NvmlDevice, host: Tier, disk: Tier, rates: DiskRates) -> Self:
        gpu, known = gpus.known(found.name), outside_measured.of(found.name)
        tiers = (_device(found.total_bytes), host, disk)
        links = (link_to_host(_link_of(found, gpu)), _to_disk("host", rates))
        machine = cls._of_cuda("here", tiers, links, found.compute_capability, gpu, outside_measured.loading())
        return machine if known is None else machine.with_outside(known)

    @classmethod
    def of(cls, name: str | os.PathLike[str], *, loading: Loading = "lazy") -> Self:
        """Return a machine by name, or from a user's own table.

        A GPU of the database gets a computer whose RAM (64 GiB), disk (1 TiB) and disk rates are assumed. A user's own
        table may have the first two. `elbowroom machine NAME` shows which figures are assumed.

        >>> Machine.of("RTX 4090").compute_capability
        89

        Args:
            name: "here", a GPU of the database in any spelling, or the path of a TOML file (docs/machines.md): a name
                that ends in .toml or has a separator of directories.
            loading: "eager" for CUDA before 11.7, or CUDA_MODULE_LOADING=EAGER: more memory is outside the allocator.
                It has no effect on "here", nor if a user's own table has `context_bytes`.

        Raises:
            UsageError: the name is unknown; the message offers the nearest names. Or `loading` is neither of the two.
            FormatError: the file cannot be read, or is not such a table.
        """
        if loading not in ("lazy", "eager"):
            raise UsageError(f"machine: given loading={rules.shown(loading)}; allowed are 'lazy' and 'eager'; take one")
        if name == "here":
            return cls.here()
        gpu = gpu_of(name)
        device, disk = _device(gpu.total_bytes.value), Tier(name="disk", capacity_bytes=gpu.disk_bytes.value)
        tiers, links = (device, disk), (_to_disk("device", ASSUMED_DISK),)
        if not gpu.unified:
            tiers = (device, Tier(name="host", capacity_bytes=gpu.host_bytes.value), disk)
            links = (link_to_host(gpu.link or gpus.database().links[ASSUMED_LINK]), _to_disk("host", ASSUMED_DISK))
        return cls._of_cuda(gpu.name, tiers, links, gpu.compute_capability.value, gpu, loading)

    @classmethod
    def _of_cuda(
        cls,
        name: str,
        tiers: tuple[Tier, ...],
        links: tuple[Link, ...],
        compute_capability: int,
        gpu: Gpu | None,
        loading: Loading = "lazy",
    ) -> Self:
        rates = {} if gpu is None else {dtype: figure.value for dtype, figure in gpu.rates}
        least, likely, most = _outside(gpu, compute_capability, loading)
        return cls(
            name=name,
            tiers=tiers,
            links=links,
            outside_bytes=likely,
            allocator="",
            flops_per_s=rates.get("float32", 0),
            memory_bytes_per_s=gpu.memory_bytes_per_s.value if gpu and gpu.memory_bytes_per_s else 0,
            compute_capability=compute_capability,
            multiprocessors=gpu.multiprocessors.value if gpu and gpu.multiprocessors else 0,
            rates=tuple(Rate(dtype=dtype, flops_per_s=rate) for dtype, rate in rates.items()),
            outside_range_bytes=(least, most),
            board_watts=gpu.board_watts.value if gpu and gpu.board_watts else 0,
            idle_watts=gpu.idle_watts.value if gpu and gpu.idle_watts else 0,
        )

    def with_outside(self, measured: MeasuredOutside) -> Self:
        """Return this machine with measured memory outside the allocator: `elbowroom machine --measure` keeps it."""
        return replace(
            self,
            outside_bytes=measured.outside_bytes,
            outside_range_bytes=(measured.context_bytes, measured.most_bytes),
        )

    def __repr__(self) -> str:
        tiers = ", ".join(f"{tier.name} {format_bytes(tier.capacity_bytes)}" for tier in self.tiers)
        return f"<Machine {self.name}: {tiers}>"

    def __post_init__(self) -> None:
        rules.text("Machine.name", self.name)
        rules.text("Machine.allocator", self.allocator)
        rules.integer("Machine.outside_bytes", self.outside_bytes)
        rules.integer("Machine.flops_per_s", self.flops_per_s)
        rules.integer("Machine.memory_bytes_per_s", self.memory_bytes_per_s)
        rules.integer("Machine.compute_capability", self.compute_capability)
        rules.integer("Machine.multiprocessors", self.multiprocessors)
        rules.records("Machine.rates", self.rates, Rate)
        rules.distinct("Machine.rates", [rate.dtype for rate in self.rates])
        rules.integer("Machine.board_watts", self.board_watts)
        rules.integer("Machine.idle_watts", self.idle_watts, most=max(0, self.board_watts - 1))
        _check_range(self.outside_range_bytes, self.outside_bytes)
        _check_tiers(self.tiers, self.links)


def gpu_of(name: str | os.PathLike[str]) -> Gpu:
    """Return the known figures of a GPU with their sources, from the database or a user's own table.

    Raises:
        UsageError: the name is unknown; the message offers the nearest names.
        FormatError: the file cannot be read, or is not such a table.
    """
    try:
        path = os.fsdecode(name)
    except TypeError:
        raise UsageError(
            f"machine: given {rules.shown(name)}; allowed is a name or a path; `elbowroom machine --list` has the names"
        ) from None
    is_path = path.endswith(".toml") or "/" in path or os.sep in path
    return gpus.read(path) if is_path else gpus.find(path)


def _outside(gpu: Gpu | None, compute_capability: int, loading: Loading) -> tuple[int, int, int]:
    """Return the least, likely and most bytes that a process takes outside the allocator."""
    given = gpu.context_bytes if gpu else None
    if given is not None and given.source == GIVEN:
        least = most = given.value
    elif loading == "eager":
        _, least, most, _ = gpus.eager(compute_capability)
    else:
        _, least, likely, most, _ = gpus.outside(compute_capability)
        return least, likely, most
    return least, (least + most) // 2 + ASSUMED_LIBRARIES_BYTES, most + ASSUMED_LIBRARIES_MOST_BYTES


def _check_range(given: object, outside_bytes: int) -> None:
    rules.integers("Machine.outside_range_bytes", given)
    least_and_most = cast("tuple[int, ...]", given)
    if len(least_and_most) != 2:
        rules.refuse("Machine.outside_range_bytes", given, "a tuple of 2 ints")
    least, most = least_and_most
    if least_and_most != (0, 0) and not least <= outside_bytes <= most:
        rules.refuse(
            "Machine.outside_range_bytes", given, f"(0, 0), or least and most of outside_bytes={outside_bytes}"
        )


def _check_tiers(tiers: tuple[Tier, ...], links: tuple[Link, ...]) -> None:
    rules.records("Machine.tiers", tiers, Tier)
    rules.records("Machine.links", links, Link)
    names = [tier.name for tier in tiers]
    if names[:1] != ["device"] or names != [name for name in TIERS if name in names]:
        rules.refuse(
            "Machine.tiers", tuple(names), "'device' first, then any of 'host', 'disk' in this order, once each"
        )
    neighbours = list(pairwise(names))
    ends = [(link.upper, link.lower) for link in links]
    rules.distinct("Machine.links", ends)
    if ("device", "host") in ends and ("host", "disk") not in ends and "disk" in names:
        neighbours.append(("device", "disk"))  # past the host
    for index, pair in enumerate(ends):
        if pair not in neighbours:
            rules.refuse(f"Machine.links[{index}]", pair, f"a link between neighbouring tiers, of {neighbours}")


def _free_disk_bytes(directory: str) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError as problem:
        raise TierFailed(
            f"disk tier: {directory} cannot be used: {problem.strerror}; name another directory", tier="disk"
        ) from problem


def _device(size_bytes: int) -> Tier:
    return Tier(name="device", capacity_bytes=size_bytes)


def link_to_host(kind: LinkKind) -> Link:
    """Make a link of a kind between the device and the host."""
    return Link(
        upper="device",
        lower="host",
        out_bytes_per_s=kind.out_bytes_per_s,
        back_bytes_per_s=kind.back_bytes_per_s,
        latency_ns=kind.latency_ns,
    )


def _to_disk(upper: Literal["device", "host"], rates: DiskRates) -> Link:
    return Link(
        upper=upper,
        lower="disk",
        out_bytes_per_s=rates.out_bytes_per_s,
        back_bytes_per_s=rates.back_bytes_per_s,
        latency_ns=rates.latency_ns,
    )


def _link_of(device: nvml.NvmlDevice, gpu: Gpu | None) -> LinkKind:
    """The database's where that is no PCIe, else by what the driver says of the slot."""
    listed = gpu.link if gpu else None
    if listed and not listed.name.startswith("pcie-"):
        return listed
    in_slot = gpus.pcie(device.pcie_generation, device.pcie_lanes)
    return in_slot or listed or gpus.database().links[ASSUMED_LINK]
