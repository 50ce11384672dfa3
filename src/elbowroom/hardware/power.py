"""Power: what a GPU's board draws while it idles, streams or computes, and what copies take; each with its source.

A share is a part of the board's power (`board_watts` of data/gpus.toml). Least, likely and most are those of four GPUs
in the power traces of Zeus (NSDI 2023, github.com/ml-energy/zeus; an excerpt is benchmarks/energy/zeus_power.csv): the
least of all, the median and the most. docs/energy.md has the table, and what was not set by it.
"""

from __future__ import annotations

from typing import NamedTuple


class Spread(NamedTuple):
    """Least, likely and most of a figure."""

    least: float
    likely: float
    most: float


IDLE_SHARE = Spread(0.14, 0.20, 0.30)
"""A process with a context whose kernels are too short to matter: NCF on MovieLens-1M, 32 to 1024 samples a step."""

STREAM_POWER_SHARE = Spread(0.55, 0.74, 0.86)
"""Kernels that the memory's bandwidth limits: ShuffleNet v2 on CIFAR-100, 1024 samples a step."""

COMPUTE_SHARE = Spread(0.71, 0.90, 0.91)
"""Kernels that arithmetic limits: BERT-base on SQuAD, 24 samples a step."""

PICOJOULES_PER_BIT = {
    # Host memory: a module of DDR4-3200 draws 4.5 W under load at its 25.6 GB/s (linuxleech.com, "Understanding how to
    # calculate power consumption for memory modules").
    "host": 22.0,
    # Memory of the device: HBM2E 6.0, GDDR6 7.5 (Micron, ultra-bandwidth solutions, average device power).
    "device": 7.5,
    # PCIe: a SerDes of 112 Gbit/s takes 5.5, NVLink-C2C 1.3 (Hot Chips figures, quoted by besthub.dev on NVLink-C2C).
    "link": 5.5,
    # Disk: an NVMe drive (Samsung 980 PRO, 1 TB) draws 6.2 W on average and reads 7 GB/s, writes 5 GB/s (data sheet).
    "disk": 140.0,
}
"""Energy of one bit that a part of a computer reads, writes or sends, in pJ."""

COPY_FACTOR = Spread(0.5, 1.0, 2.0)
"""Least and most of what copies take, as factors on that: parts differ by generation, and published figures too."""


class DevicePower(NamedTuple):
    """What a board draws, in watts.

    Attributes:
        idle: while it computes next to nothing.
        stream: while its memory's bandwidth limits it.
        compute: while its arithmetic limits it.
    """

    idle: float
    stream: float
    compute: float

    def busy(self, streaming: float, computing: float) -> float:
        """Return the power while parts of the memory's bandwidth and of the arithmetic are busy, each from 0 to 1."""
        more = max(streaming * (self.stream - self.idle), computing * (self.compute - self.idle))
        return self.idle + more


class PowerSpread(NamedTuple):
    """Least, likely and most power of a board."""

    least: DevicePower
    likely: DevicePower
    most: DevicePower


def device_power(board_watts: int, idle_watts: int) -> PowerSpread:
    """Return the least, likely and most that a board draws.

    Args:
        board_watts: power that it may draw, above 0.
        idle_watts: what it draws while it computes next to nothing; 0 if that is not known.
    """
    shares = zip(IDLE_SHARE, STREAM_POWER_SHARE, COMPUTE_SHARE, strict=True)
    found = [DevicePower(idle_watts or board_watts * i, board_watts * s, board_watts * c) for i, s, c in shares]
    return PowerSpread(*found)


def joules_per_byte(*parts: str) -> float:
    """Return the energy of a byte that passes parts of a computer: keys of `PICOJOULES_PER_BIT`."""
    return sum(PICOJOULES_PER_BIT[part] for part in parts) * 8e-12
