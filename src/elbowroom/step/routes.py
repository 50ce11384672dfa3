"""Routes: the links between the device and a tier, and the room of the host for storages that pass through it."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.errors import UsageError
from elbowroom.machine import Link, Machine, TierName
from elbowroom.step.last_step import LastStep
from elbowroom.step.moves import Moves, tier_peak


def link_to(machine: Machine, tier: TierName) -> Link:
    """Return the link between the device and a tier."""
    for link in machine.links:
        if (link.upper, link.lower) == ("device", tier):
            return link
    known = ", ".join(f"{link.upper} to {link.lower}" for link in machine.links) or "none"
    raise UsageError(f"machine {machine.name!r} has no link from device to {tier}; its links: {known}")


def route_to(machine: Machine, tier: TierName) -> tuple[Link, ...]:
    """Return the links from the device to a tier: one, or two if the host lies in between."""
    by_ends = {(link.upper, link.lower): link for link in machine.links}
    if tier == "disk" and ("device", "disk") not in by_ends and ("device", "host") in by_ends:
        if ("host", "disk") not in by_ends:
            raise UsageError(
                f"machine {machine.name!r} has no link from host to disk, and none from device to disk; "
                "add one, or swap to the host"
            )
        return by_ends["device", "host"], by_ends["host", "disk"]
    return (link_to(machine, tier),)


def staging_bytes(step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName]) -> int:
    """Return the room of the host for storages on their way to or from the disk: its capacity less what stays there."""
    host = next((tier.capacity_bytes for tier in machine.tiers if tier.name == "host"), 0)
    return host - tier_peak(step, moves, [tier == "host" for tier in tiers]) if host else 0
