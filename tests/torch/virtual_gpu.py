"""The GPU of the tests of the virtual device."""

from __future__ import annotations

from elbowroom.machine import Machine, Tier

H100 = Machine(
    name="h100",
    tiers=(Tier(name="device", capacity_bytes=80 * 2**30),),
    links=(),
    allocator="",
    compute_capability=90,
    multiprocessors=132,
)
