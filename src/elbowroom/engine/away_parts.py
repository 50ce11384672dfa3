"""Optimizer states, or gradients, that are on a lower tier, and their windows in the plan."""

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
    """Entries of what is away, by a key that their owner chooses.

    Args:
        executor: moves their bytes.

    Attributes:
        entries: key -> entry.
        of_window: window of the plan -> entry; an entry of an observed step has no window.
    """

    def __init__(self, executor: Executor) -> None:
        self.entries: dict[Hashable, StateEntry] = {}
        self.of_window: dict[int, StateEntry] = {}
        self._executor = executor

    def leave(self, key: Hashable, found: Found, n: int, known: StepPlan | None) -> None:
        """Start to move a storage to a lower tier. `n` is its window in the plan, or NONE in an observed step."""
        entry = self._executor.leave(n, found.storage, None if known is None else known.tier_of.get(n))
        self.entries[key] = entry
        if n != NONE:
            self.of_window[n] = entry

    def arrive(self, key: Hashable) -> None:
        """Bring a storage back to the device, if it is away."""
        entry = self.entries.get(key)
        if entry is not None:
            self._executor.arrive(entry)
            del self.entries[key]
            if self.of_window.get(entry.n) is entry:
                del self.of_window[entry.n]

    def close(self) -> TierError | None:
        """Bring all storages back. If the bytes of some are lost, returns the first error; all others are back."""
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
