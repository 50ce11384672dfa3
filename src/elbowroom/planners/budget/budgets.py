"""Budgets on a machine: bytes per tier. Budgets that contradict themselves or the machine are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elbowroom.errors import UsageError
from elbowroom.machine import Link, Machine, TierName
from elbowroom.planners.request import ResolvedBudget
from elbowroom.units import Amount, Budget, format_bytes

LOWER: tuple[TierName, ...] = ("host", "disk")


def device_bytes(machine: Machine, budget: Budget) -> int:
    """Return the bytes that the device may hold; 0 if the budget asks for the least.

    Raises:
        UsageError: the budget is more than the device has.
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
    """Resolve a budget on a machine to bytes.

    Raises:
        UsageError: the budget is more than the device has, or `below_device` refuses it.
    """
    return below_device(machine, budget).on_device(device_bytes(machine, budget))


def below_device(machine: Machine, budget: Budget) -> ResolvedBudget:
    """Resolve the budgets of the lower tiers. All host bytes may be pinned, unless the budget says less.

    Raises:
        UsageError: the machine lacks a tier that has a budget, or more is pinned than the host may hold.
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
    """Return the machine with the capacities that a budget allows its lower tiers; for the host, the pinned bytes."""
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
    """Return the link from the device to the tier below it; None if the machine has no such tier.

    Raises:
        UsageError: the machine has the tier, and no link to it.
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
