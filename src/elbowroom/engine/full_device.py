"""Full CUDA device: memory runs out in a run, and the refusal says where, what was held, and what would help.

A budget is what a run may hold. It keeps nobody else from the rest of the device, nor from what the allocator gives
back. Another process may take that at any time. Then an allocation within the budget fails. What torch says of it names
this process alone, so the refusal says what others took. If nobody did, the step, or the code between two steps, needs
more than there is.
"""

from __future__ import annotations

import re
from typing import final

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.engine.tiers.managed import held_bytes
from elbowroom.errors import Infeasible
from elbowroom.units import format_bytes, parse_bytes

LITTLE_BYTES = 32 << 20
"""Bytes that others hold more, and that are not said to be in the way: libraries load kernels while a run goes on."""
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)")


def asked_bytes(problem: BaseException) -> int | None:
    """Return the bytes that were asked for, if this error says that a CUDA device did not have them; else None."""
    found = _ASKED.search(str(problem)) if isinstance(problem, torch.OutOfMemoryError) else None
    return None if found is None else parse_bytes(f"{found[1]}{found[2].replace('bytes', 'B')}")


UNSAID_SHARE = 200
"""An error of torch has two decimals, so one part in `UNSAID_SHARE` of what was asked for may be missing in it."""


@final
class FullDevice:
    """What others held on a CUDA device when a run began.

    Args:
        device: the device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before_bytes = self._others_bytes()

    def _others_bytes(self) -> int:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        return total_bytes - free_bytes - self._own_bytes()

    def _own_bytes(self) -> int:
        """Return what this process has reserved on the device; managed memory lies on the host."""
        return torch.cuda.memory_reserved(self._device) - held_bytes()

    def refusal(self, problem: BaseException, budget_bytes: int, where: str) -> Infeasible | None:
        """Return what to raise for an error that ended a run, if memory ran out; None otherwise.

        Args:
            problem: the error.
            budget_bytes: the budget of the run.
            where: the place in the training, in words.
        """
        wanted_bytes = asked_bytes(problem)
        if wanted_bytes is None:
            return None
        taken_bytes = self._others_bytes() - self._before_bytes
        own_bytes = self._own_bytes()
        room_bytes = own_bytes + torch.cuda.mem_get_info(self._device)[0]
        if taken_bytes < LITTLE_BYTES or own_bytes + wanted_bytes > budget_bytes:
            return self._too_little(wanted_bytes, budget_bytes, where)
        return Infeasible(
            f"device {self._device}: given a budget of {format_bytes(budget_bytes)}, of which the run holds "
            f"{format_bytes(own_bytes)}.\nIt asked for {format_bytes(wanted_bytes)} more, which are not there: others "
            f"took {format_bytes(taken_bytes)} of the device since the run began.\nEnd what else runs there "
            f"(nvidia-smi), or start again with a budget of {format_bytes(room_bytes)} or less.",
            budget_bytes=budget_bytes,
            least_feasible_bytes=own_bytes + wanted_bytes,
            counts_reserved=True,
        )

    def needed_bytes(self, wanted_bytes: int) -> int:
        """Return about what this process would reserve with a request that was refused, in whole segments."""
        needed_bytes = self._own_bytes() + wanted_bytes + wanted_bytes // UNSAID_SHARE
        return needed_bytes + -needed_bytes % SEGMENT_BYTES

    def _too_little(self, wanted_bytes: int, budget_bytes: int, where: str) -> Infeasible:
        """Return the refusal if nobody else is in the way."""
        own_bytes = self._own_bytes()  # the cache is empty: torch has given it back
        between_bytes = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        needed_bytes = self.needed_bytes(wanted_bytes)
        free_bytes = torch.cuda.mem_get_info(self._device)[0]
        return Infeasible(
            f"device {self._device}: given a budget of {format_bytes(budget_bytes)}. Memory ran out {where}.\n"
            f"{format_bytes(own_bytes)} were held, {format_bytes(between_bytes)} of that between blocks in use. "
            f"{format_bytes(wanted_bytes)} more were asked for, where {format_bytes(free_bytes)} were left on the "
            f"device.\nAbout {format_bytes(needed_bytes)} are needed: take a smaller batch or input, or a larger "
            "budget or device.",
            budget_bytes=budget_bytes,
            least_feasible_bytes=max(needed_bytes, budget_bytes + 1),
            counts_reserved=True,
        )
