"""A CUDA device under `within`: what there is of it, and the tiers below it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import final

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.allocator.settings import set_in
from elbowroom.engine.residence import AllocatorBytes, Residence, SoFar
from elbowroom.engine.tiers.arenas import Arenas, cuda_pinning
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.lower_tiers import BelowDevice
from elbowroom.engine.tiers.managed import held_bytes
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.staged import StagedTier
from elbowroom.engine.tiers.staging import Staging
from elbowroom.engine.tiers.streams import CudaStreams
from elbowroom.hardware import gpus, ram
from elbowroom.hardware.gpu_table import LinkKind
from elbowroom.machine import ASSUMED_LINK, Link, Machine, Tier, link_to_host
from elbowroom.notices import Once
from elbowroom.units import Budget


def cuda_machine(device: torch.device, spill_dir: str | None) -> Machine:
    """This computer with one of its CUDA devices, as torch sees it.

    Args:
        device: with its index.
        spill_dir: as for `Machine.here`.
    """
    found, without = Machine.here(spill_dir=spill_dir), Machine.here(spill_dir=spill_dir, device="cpu")
    properties = torch.cuda.get_device_properties(device)
    link = found.links[0] if found.links[0].lower == "host" else _assumed_link(properties.name)
    ram_tier, disk = without.tiers
    device_tier = Tier(name="device", capacity_bytes=properties.total_memory)
    return replace(
        without,
        tiers=(device_tier, replace(ram_tier, name="host"), disk),
        links=(link, replace(without.links[0], upper="host")),
        allocator=allocator_settings(),
        compute_capability=10 * properties.major + properties.minor,
        multiprocessors=properties.multi_processor_count,
    )


def past_the_host(machine: Machine) -> Machine:
    """The machine where storages go to its disk directly: at the rates of the disk, until they are measured."""
    to_host, to_disk = machine.links
    return replace(machine, links=(to_host, replace(to_disk, upper="device")))


def allocator_settings() -> str:
    """Of the caching allocator; "exact" where another one is in use, of which no model is known."""
    if torch.cuda.get_allocator_backend() != "native":
        return "exact"
    return set_in(os.environ)


def _assumed_link(name: str) -> Link:
    known = gpus.known(name)
    kind: LinkKind = known.link if known and known.link else gpus.database().links[ASSUMED_LINK]
    return link_to_host(kind)


def free_device_bytes(device: torch.device) -> int:
    """What training may hold: what the device has free, and what the allocator holds already."""
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device) - held_bytes()


def tiers_below(
    device: torch.device, budget: Budget, directory: str | None, disk_bytes: int, *, gds: bool = False
) -> BelowDevice:
    """Host memory below a CUDA device, within the budgets `host` and `pinned`, and the disk below that or beside it.

    Args:
        device: with its index.
        budget: for all tiers.
        directory: of the spill file.
        disk_bytes: what the disk has free.
        gds: whether storages go to the disk directly, where the machine offers that.
    """
    total_bytes, free_bytes = ram.capacity_bytes(), ram.free_bytes()
    host_bytes = budget.host.resolve(total_bytes, free_bytes)
    pinned_bytes = min(host_bytes, budget.pinned.resolve(total_bytes, free_bytes))
    most_bytes = None if budget.disk.is_auto else budget.disk.resolve(disk_bytes, disk_bytes)
    streams, (pin, unpin), once = CudaStreams(device), cuda_pinning(), Once()
    host = StreamedHostTier(streams, Arenas(host_bytes, pinned_bytes, pin, unpin, once))
    if gds:
        from elbowroom.engine.tiers.gds import DirectTier, open_direct  # loaded for who asks for it alone

        direct = open_direct(directory, most_bytes, device)
        if direct is not None:
            return DirectTier(host, direct)
    return StagedTier(
        host,
        Staging(Arenas(0, 0, pin, unpin, once), streams),
        lambda: SpillFile(directory, most_bytes),
    )


OF_MATRICES = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.Embedding, torch.nn.RNNBase, torch.nn.MultiheadAttention)
"""Modules of models that multiply matrices: embeddings are, as what comes after them does."""


@final
class CudaResidence(Residence):
    """The allocator keeps what is freed; all of it goes back to the driver where a plan begins.

    Note: [Segments of their own]
    What is made in the middle of a step and stays lies in a segment of the step's large storages, which then fits none
    of them any more: one of 196 MiB in ResNet-50 at batch 64 held the 32 MiB that cuBLAS works in. So a product of
    matrices comes before the first step of a model that has layers for them (nets of convolutions alone never take that
    memory), and states that are away where a plan begins come back to an empty cache.

    Args:
        device: with its index.
        has_limit: the allocator has a limit that is not to be changed: Note: [Managed] in engine/tiers/managed.py.
    """

    def __init__(self, device: torch.device, *, has_limit: bool) -> None:
        self._device = device
        self._has_limit = has_limit
        self._limit_bytes: int | None = None
        self._share = 1.0
        self._peak_bytes, self._most_bytes = self._reserved("peak"), 0

    def _reserved(self, which: str) -> int:
        return (
            torch.cuda.memory_stats_as_nested_dict(self._device).get("reserved_bytes", {}).get("all", {}).get(which, 0)
        )

    def most_bytes(self) -> int:
        peak_bytes = self._reserved("peak")  # the user may have it begin anew
        found = peak_bytes if peak_bytes != self._peak_bytes else self._reserved("current")
        self._most_bytes = max(self._most_bytes, found - held_bytes())
        return self._most_bytes

    def beyond(self, budget_bytes: int) -> int:
        reserved = torch.cuda.memory_stats_as_nested_dict(self._device)["reserved_bytes"]["all"]["current"]
        return max(0, reserved - held_bytes() - budget_bytes)

    def training_begins(self, root: torch.nn.Module | None) -> None:
        if root is None or not any(isinstance(module, OF_MATRICES) for module in root.modules()):
            return
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            small = torch.zeros(8, 8, device=self._device)
            torch.mm(small, small)

    def others_come(self, needed_bytes: int, budget_bytes: int) -> bool:
        # Free blocks of other sizes may be of no use to it, and lie beside what it then gets from the driver.
        unused_bytes = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if needed_bytes + unused_bytes <= budget_bytes:
            return False
        self.empty()
        return True

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def held(self) -> AllocatorBytes:
        return AllocatorBytes(torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device))

    def limit(self, size_bytes: int | None) -> None:
        if self._has_limit or size_bytes == self._limit_bytes:
            return
        if self._limit_bytes is None:
            self._share = torch.cuda.get_per_process_memory_fraction(self._device)
        share, self._limit_bytes = self._share, size_bytes
        if size_bytes is not None:
            total_bytes = torch.cuda.get_device_properties(self._device).total_memory
            # Between two multiples of what segments are multiples of: no rounding of the share matters.
            share = min(share, (size_bytes // SEGMENT_BYTES + 0.5) * SEGMENT_BYTES / total_bytes)
        with suppress(torch.AcceleratorError):  # a device that is lost has no limit
            self.empty()  # so that there is room for what comes between steps, and then for the step
            torch.cuda.set_per_process_memory_fraction(share, self._device)

    def measure(self, live_bytes: Callable[[], int]) -> int:  # noqa: ARG002 - that is RAM
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        reserved_bytes = torch.cuda.memory_reserved(self._device) - held_bytes()
        return max(0, total_bytes - free_bytes - reserved_bytes)

    def so_far(self, budget_bytes: int) -> SoFar:
        counted = torch.cuda.memory_stats_as_nested_dict(self._device)  # the flat one takes ten times as long
        reserved_bytes = counted["reserved_bytes"]["all"]["current"] - held_bytes()
        return SoFar(counted["allocated_bytes"]["all"]["allocated"], max(0, reserved_bytes - budget_bytes))
