"""Opening a room: budgets resolved on this computer, the spill file made, the hooks installed."""

from __future__ import annotations

import os
from dataclasses import replace

from elbowroom import ram
from elbowroom.capture.recorder import live_ram_bytes
from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.runtime.disk import DiskTier
from elbowroom.runtime.executor import Executor
from elbowroom.runtime.learning import Learner
from elbowroom.runtime.memory import Residence
from elbowroom.runtime.room import Room
from elbowroom.units import parse_budget

PLENTY_BYTES = 1 << 30
"""RAM beside the budget from which on freed blocks stay with the process for a while."""

_open: list[Room] = []


def open_room(
    budget: str | int | None, plan: Plan | None, spill_dir: str | os.PathLike[str] | None, min_size_bytes: int
) -> Room:
    """See `elbowroom.within`."""
    if _open:
        raise UsageError(
            "within: given a room inside another one; allowed is one at a time in a process, as both would move the "
            "same storages; leave the first one, or put one `within` around everything"
        )
    if type(min_size_bytes) is not int or min_size_bytes < 1:
        raise UsageError(f"within: given min_size_bytes={min_size_bytes!r}; allowed is an int of at least 1")
    if plan is not None and not isinstance(plan, Plan):
        raise UsageError(f"within: given plan={type(plan).__name__}; allowed is a Plan, such as Plan.load(path) reads")
    amounts = parse_budget("auto" if budget is None else budget)
    directory = None if spill_dir is None else os.fspath(spill_dir)
    machine = Machine.here(spill_dir=directory, device="cpu")
    live_bytes = live_ram_bytes()
    device_bytes, disk_bytes = (tier.capacity_bytes for tier in machine.tiers)
    budget_bytes = amounts.device.resolve(device_bytes, ram.free_bytes() + live_bytes)
    if plan is not None and budget is None:
        budget_bytes = plan.budget_bytes
    residence = _residence(budget_bytes, live_bytes)
    outside_bytes = residence.measure(live_bytes)
    tier = DiskTier(directory, None if amounts.disk.is_auto else amounts.disk.resolve(disk_bytes, disk_bytes))
    learner = Learner(replace(machine, outside_bytes=outside_bytes), budget_bytes, min_size_bytes, tier.name, plan)
    room = Room(Executor(tier, residence), learner, min_size_bytes)
    room.open()
    _open.append(room)
    return room


def close_room(room: Room, *, failed: bool) -> None:
    """Close what `open_room` opened."""
    _open.remove(room)
    room.close(failed=failed)


def _residence(budget_bytes: int, live_bytes: int) -> Residence:
    """How freed memory goes back: at once where the process may hold little beside its budget."""
    slack_bytes = budget_bytes // 8
    spare_bytes = ram.free_bytes() + live_bytes - budget_bytes - slack_bytes
    if spare_bytes < max(PLENTY_BYTES, budget_bytes):
        return Residence()
    return Residence(budget_bytes + slack_bytes)
