"""Budgets on a machine: bytes per tier, and what contradicts itself or the machine refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elbowroom.errors import UsageError
from elbowroom.machine import Link, Machine, TierName
from elbowroom.planners.request import ResolvedBudget
from elbowroom.units import Amount, Budget, format_bytes

LOWER: tuple[TierName, ...] = ("host", "disk")


def device_bytes(machine: Machine, budget: Budget) -> int:
    """Bytes that the device may hold; 0 where the budget asks for the least.

    Raises:
        UsageError: more than the device has.
    """
    capacity = machine.tiers[0].capacity_bytes
    if budget.device.is_least:
        return 0
    resolved = budget.device.resolve(capacity, max(0, capacity - machine.outside_bytes))
    if resolved > capacity:
        raise UsageError(
            f"budget: given {format_bytes(resolved)} for the device of machine {machine.name!r}, which has "
            f"{_bytes(capacity)}, {format_bytes(machine.outside_bytes)} of them outside the allocator; allowed is at "
            "most what it has, which is less than the number a card is sold with; write auto for what is free"
        )
    return resolved


def resolved(machine: Machine, budget: Budget) -> ResolvedBudget:
    """A budget on a machine, in bytes.

    Raises:
        UsageError: more than the device has, or what `below_device` refuses.
    """
    return below_device(machine, budget).on_device(device_bytes(machine, budget))


def below_device(machine: Machine, budget: Budget) -> ResolvedBudget:
    """The amounts of a budget for the lower tiers; all of the host's may be pinned, unless the budget says less.

    Raises:
        UsageError: bytes on a tier that the machine does not have, or more pinned than the host may hold.
    """
    capacity = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    amounts: Mapping[TierName, Amount] = {"host": budget.host, "disk": budget.disk}
    for name, amount in (*amounts.items(), ("pinned", budget.pinned)):
        tier = "host" if name == "pinned" else name
        if not amount.is_auto and tier not in capacity:
            raise UsageError(
                f"budget: given {name}={amount}, and machine {machine.name!r} has no {tier} tier below its device; "
                f"its tiers are {', '.join(capacity)}; leave {name} out"
            )
    host_bytes, disk_bytes = (
        min(capacity[name], amounts[name].resolve(capacity[name], capacity[name])) if name in capacity else 0
        for name in LOWER
    )
    pinned_bytes = _pinned(budget, capacity["host"], host_bytes) if "host" in capacity else 0
    return ResolvedBudget(host_bytes=host_bytes, pinned_bytes=pinned_bytes, disk_bytes=disk_bytes)


def held_to(machine: Machine, budget: ResolvedBudget) -> Machine:
    """A machine whose lower tiers hold what a budget allows: of the host's bytes those that may be pinned."""
    allowed = {"host": budget.pinned_bytes, "disk": budget.disk_bytes}
    device, *tiers = machine.tiers
    return replace(machine, tiers=(device, *(replace(each, capacity_bytes=allowed[each.name]) for each in tiers)))


def _pinned(budget: Budget, capacity_bytes: int, host_bytes: int) -> int:
    if budget.pinned.is_auto:
        return host_bytes
    pinned = budget.pinned.resolve(capacity_bytes, host_bytes)
    if pinned > host_bytes:
        raise UsageError(
            f"budget: given pinned={budget.pinned} ({pinned} bytes) where the host may hold {_bytes(host_bytes)}; "
            "pinned memory is a part of the host's, so allowed is at most that; lower pinned or raise host"
        )
    return pinned


def first_lower(machine: Machine) -> Link | None:
    """The link from the device to the tier below it; None where the machine has no such tier.

    Raises:
        UsageError: it has the tier, and no link to it.
    """
    links = [link for link in machine.links if link.upper == "device"]
    if links:
        return links[0]
    lower = [tier.name for tier in machine.tiers[1:]]
    if lower:
        known = ", ".join(f"{link.upper} to {link.lower}" for link in machine.links) or "none"
        raise UsageError(
            f"machine: {machine.name!r} has a {lower[0]} tier and no link from its device to it (its links: {known}); "
            f"allowed is a machine with a link to each tier that storages go to; add Link(upper='device', "
            f"lower='{lower[0]}', ...), or leave the tier out"
        )
    return None


def _bytes(size_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} ({size_bytes} bytes)"
