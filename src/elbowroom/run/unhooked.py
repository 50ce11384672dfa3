"""Steps without hooks: where everything is kept, a step that is known well runs as it would without us.

Note: [Steps without hooks]
Hooks in Python cost microseconds for each tensor that autograd saves. Where everything is kept, all they do is to see
that the step is the expected one. So once `SURE` steps in a row were, the hooks are taken out where a step begins, and
put back where its optimizer has stepped; after `UNCHECKED` such steps one is checked again.

What tells beforehand that a step will be the same is its signature and the details of step_kinds.py. What tells
afterwards that it was: it made as many nodes of autograd's graph and, on CUDA, asked the allocator for as many bytes.
Where it was not, the next ones are checked, and what they turn out to be is observed as ever. The budget is not held
within a step without hooks that holds more than it should: that is counted and said.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from elbowroom.engine.residence import Residence, SoFar
from elbowroom.engine.saved_tensors import Hooks
from elbowroom.run.step_kinds import StepKind
from elbowroom.torch_compat.core import next_node_number

SURE = 3
"""Checked steps in a row that were alike, before one is not checked."""
UNCHECKED = 15
"""Steps in a row that are not checked, at most."""


@final
class Unhooked:
    """Takes the hooks out for a step, and tells what it was.

    Args:
        hooks: those of the room.
        residence: knows what the device was asked for.
        budget_bytes: of the device.

    Attributes:
        without: whether this step runs without hooks.
    """

    def __init__(self, hooks: Hooks, residence: Residence, budget_bytes: int) -> None:
        self._hooks = hooks
        self._residence = residence
        self._budget_bytes = budget_bytes
        self._known: StepKind | None = None
        self._details: Hashable = None
        self._node = 0
        self._before = SoFar(0, 0)
        self._made: tuple[int, int] | None = None
        self._excess_bytes = 0
        self.without = False

    def begin(self, known: StepKind | None, details: Hashable, *, plain: bool) -> None:
        """A step begins.

        Args:
            known: what it should be; None where it is observed.
            details: see step_kinds.py.
            plain: whether it may run without hooks.
        """
        self._hooks.put_back()
        may = plain and details is not None
        self._known, self._details = known if known is not None and (may or known.shared) else None, details
        self._made, self._excess_bytes, self.without = None, 0, False
        if self._known is None:
            return
        seen = self._known.seen
        sure = may and seen.alike >= SURE and seen.unchecked < UNCHECKED and seen.details == details
        self.without = sure and self._hooks.take_out()
        self._before, self._node = self._residence.so_far(self._budget_bytes), next_node_number()

    def mark_end(self) -> None:
        """The optimizer has stepped."""
        if self._known is not None and self._made is None:
            after = self._residence.so_far(self._budget_bytes)
            self._made = next_node_number() - self._node, after.asked_bytes - self._before.asked_bytes
            self._excess_bytes = after.beyond_bytes if after.beyond_bytes > self._before.beyond_bytes else 0
        self._hooks.put_back()

    def ended(self, known: StepKind | None) -> int:
        """The step is over.

        Args:
            known: what it was, as far as is known.

        Returns:
            By how many bytes it went above the budget, where it was not checked or followed a larger step's plan.
        """
        mine, self._known = self._known, None
        if mine is None or self._made is None:
            return 0
        if mine.shared:
            return self._excess_bytes
        seen = mine.seen
        alike = (self._made, self._details) == (seen.made, seen.details)
        if self.without:
            seen.unchecked += 1
            seen.alike = seen.alike if alike else 0
            return self._excess_bytes
        seen.alike = 0 if known is not mine else seen.alike + 1 if alike else 1
        seen.made, seen.details, seen.unchecked = self._made, self._details, 0
        return 0
