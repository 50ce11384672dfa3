"""What is below the device of optimizer states, or of gradients, and in which windows of the plan."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from elbowroom.engine.conductor import StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.optimizer_parts import Found
from elbowroom.errors import TierError
from elbowroom.units import NONE


@final
class AwayParts:
    """The entries of what is away, by a key of its owner's.

    Args:
        executor: moves them.

    Attributes:
        entries: by key.
        of_window: by the plan's window; those of an observed step have none.
    """

    def __init__(self, executor: Executor) -> None:
        self.entries: dict[Hashable, StateEntry] = {}
        self.of_window: dict[int, StateEntry] = {}
        self._executor = executor

    def leave(self, key: Hashable, found: Found, n: int, known: StepPlan | None) -> None:
        """Start to move one below, in a window of the plan, or NONE in an observed step."""
        entry = self._executor.leave(n, found.storage, None if known is None else known.tier_of.get(n))
        self.entries[key] = entry
        if n != NONE:
            self.of_window[n] = entry

    def arrive(self, key: Hashable) -> None:
        """Have one on the device, if it is away."""
        entry = self.entries.get(key)
        if entry is not None:
            self._executor.arrive(entry)
            del self.entries[key]
            if self.of_window.get(entry.n) is entry:
                del self.of_window[entry.n]

    def close(self) -> TierError | None:
        """Have all on the device. Returns the first error where the bytes of some are lost; all others are back."""
        problem: TierError | None = None
        for entry in self.entries.values():
            try:
                self._executor.arrive(entry)
            except TierError as found:
                problem = problem or found
                self._executor.lose(entry)
        self.entries.clear()
        self.of_window.clear()
        return problem
