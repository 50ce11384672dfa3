"""CUDA device of a run: its memory, its allocator, and the tiers below it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import final

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.allocator.settings import set_in
from elbowroom.engine.full_device import FullDevice, asked_bytes
from elbowroom.engine.residence import Residence, SoFar
from elbowroom.engine.tiers.arenas import Arenas, cuda_pinning
from elbowroom.engine.tiers.host import StreamedHostTier
from elbowroom.engine.tiers.lower_tiers import BelowDevice
from elbowroom.engine.tiers.managed import held_bytes
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.staged import StagedTier
from elbowroom.engine.tiers.staging import Staging
from elbowroom.engine.tiers.streams import CudaStreams
from elbowroom.errors import Infeasible
from elbowroom.hardware import gpus, ram
from elbowroom.hardware.gpu_table import LinkKind
from elbowroom.machine import ASSUMED_LINK, Link, Machine, Tier, link_to_host
from elbowroom.notices import Once
from elbowroom.torch_compat.cuda_allocator import allocator_text, set_allocator
from elbowroom.units import Budget


def cuda_machine(device: torch.device, spill_dir: str | None) -> Machine:
    """Return this computer with one of its CUDA devices, as torch sees it.

    Args:
        device: the device, with its index.
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
    """Return the machine with a direct link from device to disk. Until measured, its rates are those of the disk."""
    to_host, to_disk = machine.links
    return replace(machine, links=(to_host, replace(to_disk, upper="device")))


def allocator_settings() -> str:
    """Return the settings of the caching allocator; "exact" if another allocator is in use, which has no model."""
    if torch.cuda.get_allocator_backend() != "native":
        return "exact"
    return allocator_text() or set_in(os.environ)


def _assumed_link(name: str) -> Link:
    known = gpus.known(name)
    kind: LinkKind = known.link if known and known.link else gpus.database().links[ASSUMED_LINK]
    return link_to_host(kind)


def free_device_bytes(device: torch.device) -> int:
    """Return what training may hold: the free bytes of the device, and those that the allocator holds already."""
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device) - held_bytes()


def tiers_below(
    device: torch.device, budget: Budget, directory: str | None, disk_bytes: int, *, gds: bool = False
) -> BelowDevice:
    """Return the tiers below a CUDA device: host memory, within the budgets `host` and `pinned`, and the disk.

    Args:
        device: the device, with its index.
        budget: the budgets of all tiers.
        directory: directory of the spill file.
        disk_bytes: free bytes of the disk.
        gds: whether storages go to the disk directly, if the machine offers that.
    """
    total_bytes, free_bytes = ram.capacity_bytes(), ram.free_bytes()
    host_bytes = budget.host.resolve(total_bytes, free_bytes)
    pinned_bytes = min(host_bytes, budget.pinned.resolve(total_bytes, free_bytes))
    most_bytes = None if budget.disk.is_auto else budget.disk.resolve(disk_bytes, disk_bytes)
    streams, (pin, unpin), once = CudaStreams(device), cuda_pinning(), Once()
    host = StreamedHostTier(streams, Arenas(host_bytes, pinned_bytes, pin, unpin, once))
    if gds:
        from elbowroom.engine.tiers.gds import DirectTier, open_direct  # loaded only on request

        direct = open_direct(directory, most_bytes, device)
        if direct is not None:
            return DirectTier(host, direct)
    return StagedTier(
        host,
        Staging(Arenas(0, 0, pin, unpin, once), streams),
        lambda: SpillFile(directory, most_bytes),
    )


OF_MATRICES = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.Embedding, torch.nn.RNNBase, torch.nn.MultiheadAttention)
"""Layers of models that multiply matrices. Embeddings count, as the layers after them multiply matrices."""


@final
class CudaResidence(Residence):
    """Memory of the caching allocator: it keeps what is freed, and returns all of it to the driver when a plan begins.

    Note: [Segments of their own]
    A storage may be made in the middle of a step, in a segment of the step's large storages, and stay. That segment
    then fits no large storage any more. In ResNet-50 at batch 64, a segment of 196 MiB held the 32 MiB
    workspace of cuBLAS. So small products of matrices run before the first step, if the model has layers that multiply
    matrices: one for forward, and one in the thread of backward, which has a handle and a workspace of its own. The
    first step then finds what the later ones find. Nets of convolutions alone never take that memory. Optimizer states
    that are away when a plan begins come back to an empty cache.

    Args:
        device: the device, with its index.
        has_limit: whether the allocator has a limit that must not change: Note: [Managed] in engine/tiers/managed.py.
        others: other settings that the run may give the allocator, as in PYTORCH_ALLOC_CONF.
    """

    def __init__(self, device: torch.device, *, has_limit: bool, others: tuple[str, ...] = ()) -> None:
        self._device = device
        self.other_allocators = others
        self._has_limit = has_limit
        self._limit_bytes: int | None = None
        self._share = 1.0
        self._peak_bytes, self._most_bytes = self._reserved("peak"), 0
        self._full = FullDevice(device)

    def refusal(self, problem: BaseException, budget_bytes: int, where: str) -> Infeasible | None:
        return self._full.refusal(problem, budget_bytes, where)

    @property
    def refuses(self) -> bool:
        return True

    def asked_bytes(self, problem: BaseException) -> int | None:
        return asked_bytes(problem)

    def needed_bytes(self, asked_bytes: int) -> int:
        return self._full.needed_bytes(asked_bytes)

    def _reserved(self, which: str) -> int:
        return (
            torch.cuda.memory_stats_as_nested_dict(self._device).get("reserved_bytes", {}).get("all", {}).get(which, 0)
        )

    def most_bytes(self) -> int:
        peak_bytes = self._reserved("peak")  # the user may have reset it
        found = peak_bytes if peak_bytes != self._peak_bytes else self._reserved("current")
        self._most_bytes = max(self._most_bytes, found - held_bytes())
        return self._most_bytes

    def held_bytes(self) -> int:
        return self._reserved("current") - held_bytes()

    def beyond(self, budget_bytes: int) -> int:
        ours_bytes = self._reserved("current") - held_bytes()
        self._most_bytes = max(self._most_bytes, ours_bytes)  # the user may reset the peak
        return max(0, ours_bytes - budget_bytes)

    def training_begins(self, root: torch.nn.Module | None) -> None:
        if root is None or not any(isinstance(module, OF_MATRICES) for module in root.modules()):
            return
        with torch.enable_grad(), torch.autocast("cuda", enabled=False):
            small = torch.zeros(8, 8, device=self._device)

            def multiply(_: torch.Tensor | None = None) -> None:
                torch.mm(small, small)

            multiply()
            leaf = torch.zeros(1, device=self._device, requires_grad=True)
            copy = leaf * 1  # saves nothing
            copy.register_hook(multiply)
            torch.autograd.grad(copy, leaf, torch.ones_like(copy))

    def others_come(self, needed_bytes: int, budget_bytes: int) -> bool:
        # Free blocks of other sizes may be useless to the step: they add to what it gets from the driver.
        unused_bytes = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if needed_bytes + unused_bytes <= budget_bytes:
            return False
        self.empty()
        return True

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def allocated_bytes(self) -> int:
        counted = torch.cuda.memory_stats_as_nested_dict(self._device)
        return counted.get("allocated_bytes", {}).get("all", {}).get("current", 0)

    def allocate_by(self, settings: str) -> None:
        set_allocator(settings)

    def limit(self, size_bytes: int | None) -> bool:
        if self._has_limit or size_bytes == self._limit_bytes:
            return False
        if self._limit_bytes is None:
            self._share = torch.cuda.get_per_process_memory_fraction(self._device)
        share, self._limit_bytes = self._share, size_bytes
        if size_bytes is not None:
            total_bytes = torch.cuda.get_device_properties(self._device).total_memory
            # Half a segment above a whole number of segments, so that the share's rounding does not matter.
            share = min(share, (size_bytes // SEGMENT_BYTES + 0.5) * SEGMENT_BYTES / total_bytes)
        with suppress(torch.AcceleratorError):  # a device that is lost has no limit
            torch.cuda.set_per_process_memory_fraction(share, self._device)
        return True

    def measure(self, live_bytes: Callable[[], int]) -> int:  # noqa: ARG002 - that is RAM
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        reserved_bytes = torch.cuda.memory_reserved(self._device) - held_bytes()
        return max(0, total_bytes - free_bytes - reserved_bytes)

    def so_far(self, budget_bytes: int) -> SoFar:
        counted = torch.cuda.memory_stats_as_nested_dict(self._device)  # memory_stats() takes ten times as long
        reserved_bytes = counted["reserved_bytes"]["all"]["current"] - held_bytes()
        return SoFar(counted["allocated_bytes"]["all"]["allocated"], max(0, reserved_bytes - budget_bytes))
