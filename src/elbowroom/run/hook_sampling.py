"""Steps without hooks: a well-known step that keeps everything runs as it would without elbowroom.

Note: [Steps without hooks]
Hooks in Python cost microseconds for each tensor that autograd saves. If everything is kept, they only check that the
step is the expected one. So once `SURE` steps in a row were equal, the hooks are removed at the beginning of a step.
They are put back when its optimizer has stepped. After `LEAST_UNCHECKED` such steps one is checked again; if it was
alike, after twice as many, up to `MOST_UNCHECKED`. Most of these steps are those of a rest, with fewer looks still
(resting.py).

Before a step, its signature and the details of step_kinds.py say that it will be the same. Afterwards two counts say
whether it was: the nodes of autograd's graph and, on CUDA, the bytes that the allocator was asked for. If it was not,
the next steps are checked, and observed if they are of a new kind. A step without hooks that needs more memory than
expected may exceed the budget. This is counted, and a warning says so.

An evaluation with gradients and without a backward is a step that does not end: each forward comes on top of the one
before. If the budget has no room for a second forward, the calls of the outermost module are counted. If it is called
more often than in a checked step, the hooks are put back, and what is saved from there on leaves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import final

import torch

from elbowroom.engine.residence import Residence, SoFar
from elbowroom.engine.saved_tensors import Hooks
from elbowroom.run.step_kinds import LEAST_UNCHECKED, StepKind
from elbowroom.torch_compat.core import next_node_number

SURE = 3
"""Checked steps in a row that have to be alike before one runs unchecked."""
MOST_UNCHECKED = 1000
"""Most unchecked steps in a row."""


@final
class Unhooked:
    """Removes the hooks for a step, and finds out afterwards whether it was the expected one.

    Args:
        hooks: the hooks of the run.
        residence: knows how many bytes the device was asked for.
        budget_bytes: returns the budget of the device.

    Attributes:
        without: whether this step runs without hooks.
        in_a_row: number of steps without hooks in a row that have ended as expected.
        root: returns the outermost module of this step; None if there is none, or if it is gone.
    """

    def __init__(self, hooks: Hooks, residence: Residence, budget_bytes: Callable[[], int]) -> None:
        self._hooks = hooks
        self._residence = residence
        self._budget_bytes = budget_bytes
        self._known: StepKind | None = None
        self._details: Hashable = None
        self._node = 0
        self._before = SoFar(0, 0)
        self._made: tuple[int, int] | None = None
        self._excess_bytes = 0
        self._calls = 0
        self.without = False
        self.in_a_row = 0
        self.root: Callable[[], torch.nn.Module | None] = no_module

    def begin(
        self, known: StepKind | None, details: Hashable, root: torch.nn.Module | None = None, *, plain: bool
    ) -> None:
        """Begin a step.

        Args:
            known: the kind that it should be; None if it is observed.
            details: its details, see step_kinds.py.
            root: its outermost module.
            plain: whether it may run without hooks.
        """
        self._hooks.put_back()
        self.root = no_module if root is None else weakref.ref(root)
        may = plain and details is not None
        self._known, self._details = known if known is not None and (may or known.shared) else None, details
        self._made, self._excess_bytes, self.without, self._calls = None, 0, False, 1
        if self._known is None:
            return
        seen = self._known.seen
        sure = may and seen.alike >= SURE and seen.unchecked < seen.most_unchecked and seen.details == details
        self.without = sure and self._hooks.take_out()
        self._before, self._node = self._residence.so_far(self._budget_bytes()), next_node_number()

    def called(self, module: torch.nn.Module) -> bool:
        """Count a call of a module in the step. Returns whether it is one too many for a step without hooks."""
        if module is not self.root():
            return False
        self._calls += 1
        return self.without and self._known is not None and self._calls > self._known.seen.calls

    def differs(self) -> None:
        """Put the hooks back: the step is not the expected one, and goes on."""
        self.without = False
        self._hooks.put_back()

    def mark_end(self) -> None:
        """Put the hooks back: the optimizer has stepped."""
        if self._known is not None and self._made is None:
            after = self._residence.so_far(self._budget_bytes())
            self._made = next_node_number() - self._node, after.asked_bytes - self._before.asked_bytes
            self._excess_bytes = after.excess_since(self._before)
        self._hooks.put_back()

    def ended(self, known: StepKind | None) -> int:
        """End a step.

        Args:
            known: its kind, as far as is known.

        Returns:
            Bytes over budget, for a step that ran unchecked or under the plan of a larger step; else 0.
        """
        mine, self._known = self._known, None
        self.in_a_row = self.in_a_row + 1 if self.without else 0
        if mine is None or self._made is None:
            return 0
        if mine.shared:
            return self._excess_bytes
        seen = mine.seen
        alike = (self._made, self._details) == (seen.made, seen.details)
        if self.without:
            seen.unchecked += 1
            seen.alike = seen.alike if alike else 0
            self.in_a_row = self.in_a_row if alike and not self._excess_bytes else 0
            return self._excess_bytes
        went_on = seen.alike >= SURE and alike and known is mine and seen.unchecked > 0
        seen.most_unchecked = min(2 * seen.most_unchecked, MOST_UNCHECKED) if went_on else LEAST_UNCHECKED
        seen.alike = 0 if known is not mine else seen.alike + 1 if alike else 1
        seen.made, seen.details, seen.unchecked, seen.calls = self._made, self._details, 0, self._calls
        return 0


def no_module() -> None:
    """Stand in for a weak reference to a module that is gone."""
