"""Opening a room: resolves budgets on this computer, makes the spill file, installs the hooks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from traceback import clear_frames
from typing import NamedTuple

import torch

from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.cuda_device import CudaResidence, cuda_machine, free_device_bytes, past_the_host, tiers_below
from elbowroom.engine.executor import Executor
from elbowroom.engine.expandable_segments import expandable_segments
from elbowroom.engine.ram_guard import RamGuard
from elbowroom.engine.residence import RamResidence, slack_bytes
from elbowroom.engine.tiers.disk import DiskTier
from elbowroom.engine.tiers.managed import managed_memory
from elbowroom.errors import UsageError
from elbowroom.hardware import ram
from elbowroom.hardware.launched_rank import launched_rank
from elbowroom.machine import Machine
from elbowroom.planners.budget.budgets import below_device, held_to
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.run.conv_algorithms import LayerChoices
from elbowroom.run.given_plan import GivenPlan
from elbowroom.run.hard_room import HardRoom
from elbowroom.run.learner import Learner
from elbowroom.run.recompute.controller import Recomputing
from elbowroom.run.room import Room
from elbowroom.run.training import TrainingRun
from elbowroom.torch_compat.process_groups import ranks_of_group
from elbowroom.units import Amount, Budget, parse_budget

PLENTY_BYTES = 1 << 30
"""RAM beyond the budget from which on freed blocks stay with the process for a while."""

_open: list[TrainingRun] = []


def _after_fork() -> None:
    for run in _open:
        run.leave_behind()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def opened(
    budget: str | int | None,
    given: GivenPlan | None,
    spill_dir: str | os.PathLike[str] | None,
    device: str | torch.device | None,
    asked: PlanRequest,
    *,
    measure: bool,
) -> Iterator[Room]:
    """See `elbowroom.within`."""
    with ExitStack() as around:
        run = _opened(budget, given, spill_dir, device, asked, around)
        if measure:
            run.measure_next_step()
        _open.append(run)
        error = None
        try:
            yield Room(run)
        except BaseException as found:
            error = found
            raise
        finally:
            try:
                if run in _open:
                    _open.remove(run)
                    _end(run, error)
                else:  # this process was forked inside the room, which is its parent's
                    around.pop_all()
            finally:
                del error  # it has this frame in its traceback


def _end(run: TrainingRun, error: BaseException | None) -> None:
    """Close a run. Raises what its end shows, or what explains the error that ends it."""
    lost = refusal = None
    try:
        lost = run.loss() if error is None or isinstance(error, Exception) else None
        refusal = run.refusal(error)
        refusal = run.peers.instead_of(lost or refusal or error) or refusal
        if refusal is not None and error is not None:
            clear_frames(error.__traceback__)  # their tensors take the memory that closing needs
        run.close(failed=error is not None or lost is not None)
        if lost is not None:
            raise lost from error
        if refusal is not None:
            raise refusal from error
    finally:
        del error, lost, refusal  # each has this frame in its traceback, and the training in its own


def _opened(
    budget: str | int | None,
    given: GivenPlan | None,
    spill_dir: str | os.PathLike[str] | None,
    device: str | torch.device | None,
    asked: PlanRequest,
    around: ExitStack,
) -> TrainingRun:
    where = _device_of(device)
    if _open:
        raise _inside_another(where, _open[0].device)
    amounts = parse_budget("auto" if budget is None else budget)
    if given is not None and budget is None:
        amounts = replace(amounts, device=Amount(size_bytes=given.plan.budget_bytes))
    directory = None if spill_dir is None else os.fspath(spill_dir)
    amounts = amounts.among(_ranks_here(), device=where.type == "cpu")
    if where.type == "cuda":
        others = around.enter_context(expandable_segments(where, allowed=not asked.managed_bytes))
        executor, machine, resolved, hard_room = _above_host(where, amounts, directory, asked, others)
        around.enter_context(managed_memory(where, resolved.device_bytes, asked.managed_bytes))
    else:
        _refuse_of_cuda(asked)
        executor, machine, resolved, hard_room = _above_disk(where, amounts, directory)
    asked = asked.with_budget(given.plan.budget_bytes if given is not None else resolved.device_bytes)
    recomputing = Recomputing(executor, wanted="recompute" in asked.allow)
    layers = LayerChoices(wanted="algorithm" in asked.allow or (given is not None and bool(given.plan.algorithms)))
    most_bytes = executor.residence.most_bytes
    learner = Learner(machine, resolved, asked, executor.tier.name, given, recomputing, layers, hard_room, most_bytes)
    run = TrainingRun(executor, learner, asked.min_size_bytes)
    run.open()
    executor.residence.run_opens()
    return run


def _ranks_here() -> int:
    """Return how many ranks of the job share this computer; without a launcher, the group counts as one computer's."""
    launched = launched_rank()
    group = 1 if launched.of_many else ranks_of_group()
    return max(launched.local_ranks, group)


def _divided(amounts: Budget, **names: str) -> tuple[str, ...]:
    """Return the names of what is divided among ranks, by the tier."""
    return tuple(dict.fromkeys(name for tier, name in names.items() if getattr(amounts, tier).is_divided))


def _inside_another(inner: torch.device, outer: torch.device) -> UsageError:
    if inner == outer:
        why = "as both would move the same storages; leave the first one, or put one `within` around everything"
    else:
        why = (
            "as it carries out the steps of all optimizers, whatever device their parameters are on; give the one room "
            "the device that is short of memory (what is on others stays there), or train on each in its own process"
        )
    return UsageError(
        f"within: given a room for {inner} inside another one for {outer}; allowed is one at a time in a process, {why}"
    )


def _device_of(device: str | torch.device | None) -> torch.device:
    """Return the device that storages are to leave, with its index if it is a GPU."""
    has_cuda = torch.cuda.is_available()
    try:
        found = torch.device(device if device is not None else "cuda" if has_cuda else "cpu")
    except (RuntimeError, TypeError):
        found = None
    count = torch.cuda.device_count() if has_cuda else 0
    is_there = found is not None and (found.type == "cpu" or (found.type == "cuda" and (found.index or 0) < count))
    if found is None or not is_there:
        names = ", ".join(repr(f"cuda:{i}") for i in range(count))
        allowed = f"'cpu' and {names}" if has_cuda else "'cpu', as torch sees no CUDA device"
        raise UsageError(f"within: given device={str(device)!r}; allowed are {allowed}; take one")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


class RunBasis(NamedTuple):
    """What a run rests on.

    Attributes:
        executor: moves storages.
        machine: the machine that it runs on.
        budget: budgets of the tiers.
        hard_room: the room below a hard limit on this process; None without one.
    """

    executor: Executor
    machine: Machine
    budget: ResolvedBudget
    hard_room: HardRoom | None = None


def _refuse_of_cuda(asked: PlanRequest) -> None:
    """Raise UsageError if a knob is given that has no meaning with RAM as the device."""
    for knob, given in (("gds", asked.gds), ("managed", asked.managed_bytes)):
        if given:
            raise UsageError(
                f"within: given {knob}={given} and RAM as the device; allowed is a CUDA device, whose storages go past "
                f"the host (gds) or lie on it (managed); leave {knob} out"
            )


def _above_disk(device: torch.device, amounts: Budget, directory: str | None) -> RunBasis:
    """Set up RAM as the device, with the disk below it."""
    machine = Machine.here(spill_dir=directory, device="cpu")
    live_bytes = live_ram_bytes()
    limits = ram.hard_limits()
    sharers = amounts.device.sharers
    guard = RamGuard(limits, sharers) if limits else None
    device_bytes, disk_bytes = (tier.capacity_bytes for tier in machine.tiers)
    budget_bytes = amounts.device.resolve(device_bytes, ram.free_bytes() + sharers * live_bytes)
    residence = RamResidence(guard=guard) if guard else _residence(budget_bytes, live_bytes, sharers)
    outside_bytes = residence.measure(lambda: live_bytes)
    tier = DiskTier(directory, None if amounts.disk.is_auto else amounts.disk.resolve(disk_bytes, disk_bytes))
    resolved = below_device(machine, Budget(disk=amounts.disk)).on_device(budget_bytes)
    resolved = replace(resolved, sharers=sharers, divided=_divided(amounts, device="RAM", disk="disk"))
    executor = Executor(tier, residence, device)
    given_bytes = None if amounts.device.is_auto else budget_bytes
    hard_room = HardRoom(guard, residence, given_bytes) if guard else None
    return RunBasis(executor, replace(machine, outside_bytes=outside_bytes), resolved, hard_room)


def _above_host(
    device: torch.device, amounts: Budget, directory: str | None, asked: PlanRequest, others: tuple[str, ...]
) -> RunBasis:
    """Set up a CUDA device, with host memory and the disk below it; `others` are settings its allocator may get."""
    machine = cuda_machine(device, directory)
    budget_bytes = amounts.device.resolve(machine.tiers[0].capacity_bytes, free_device_bytes(device))
    residence = CudaResidence(device, has_limit=bool(asked.managed_bytes), others=others)
    outside_bytes = residence.measure(live_ram_bytes)
    tier = tiers_below(device, amounts, directory, machine.tiers[2].capacity_bytes, gds=asked.gds)
    if tier.skips_host:
        machine = past_the_host(machine)
    host, pinned = Amount(size_bytes=tier.budget_bytes), Amount(size_bytes=tier.pinned_budget_bytes)
    resolved = below_device(machine, Budget(host=host, pinned=pinned, disk=amounts.disk)).on_device(budget_bytes)
    divided = _divided(amounts, host="RAM", pinned="page-locked memory", disk="disk")
    resolved = replace(resolved, sharers=amounts.host.sharers, divided=divided)
    if amounts.device.is_auto:
        resolved = replace(resolved, free_bytes=free_device_bytes(device))
    held = held_to(replace(machine, outside_bytes=outside_bytes), resolved)
    return RunBasis(Executor(tier, residence, device), held, resolved)


def _residence(budget_bytes: int, live_bytes: int, sharers: int) -> RamResidence:
    """Choose how freed memory goes back to the system: at once if there is little RAM beyond the budget."""
    most_bytes = budget_bytes + slack_bytes(budget_bytes)
    spare_bytes = ram.free_bytes() // sharers + live_bytes - most_bytes
    if spare_bytes < max(PLENTY_BYTES, budget_bytes):
        return RamResidence()
    return RamResidence(most_bytes)
