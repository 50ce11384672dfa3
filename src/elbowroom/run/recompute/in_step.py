"""What one step after the other does about recomputes: records its calls, drops and rebuilds, proves, verifies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import final

import torch

from elbowroom.capture.recording.observing_director import NOTHING
from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import Executor
from elbowroom.errors import RecomputeFailed
from elbowroom.run.learner import Learner
from elbowroom.run.recompute.calls import CallRecorder
from elbowroom.run.recompute.rebuild import Rebuilder
from elbowroom.run.step_kinds import StepKind


@final
class StepRecomputes:
    """The room's part that has to do with recomputes.

    Args:
        executor: moves the storages.
        learner: what is known of the steps.

    Attributes:
        has_own_writes: whether storages are swapped in this step that its plan does not swap.
        records_calls: whether this step records its calls.
    """

    def __init__(self, executor: Executor, learner: Learner) -> None:
        self._executor = executor
        self._learner = learner
        self._calls: CallRecorder | None = None
        self._rebuilder: Rebuilder | None = None
        self.has_own_writes = False

    @property
    def records_calls(self) -> bool:
        """See class."""
        return self._calls is not None

    def begin(self, key: Hashable, known: StepKind | None, entries: Sequence[Entry]) -> None:
        """A step begins.

        Args:
            key: its signature.
            known: what it should be.
            entries: of the step, by n; grows.
        """
        self._calls = CallRecorder(self._executor.device) if self._learner.wants_calls(key, known) else None
        self._rebuilder = known.rebuilder if known is not None else None
        proving = known is not None and known.proofs > 0
        self.has_own_writes = proving
        if self._rebuilder is not None:
            self._rebuilder.begin(entries, proving=proving)
        if self._calls is not None:
            self._calls.start()

    def paused(self) -> AbstractContextManager[None]:
        """Around the runtime's own work, which is not part of the step."""
        return NOTHING if self._calls is None else self._calls.paused()

    def saves(self, n: int, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """The n-th storage of the step is saved."""
        if self._calls is not None:
            self._calls.saves(n, storage, tensor)

    def saved(self, known: StepKind, entry: Entry, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
        """It has its entry, and is swapped where the plan says so: drop it where the plan says so.

        Returns:
            False where it should be dropped, but that would not be safe: then it is swapped.
        """
        fine = self._rebuilder is not None and self._rebuilder.saved(entry, storage, tensor)
        if fine or entry.n not in known.schedule.dropped:
            return True
        self.has_own_writes = True
        self._executor.swap_out(entry)
        return False

    def rebuild(self, indices: Sequence[int]) -> None:
        """Run these recipes of the plan."""
        if self._rebuilder is not None:
            for index in indices:
                self._rebuilder.rebuild(index)

    def differs(self) -> None:
        """The step is not what was expected: nothing more is dropped in it."""
        self.forward_ends()
        self._calls = self._rebuilder = None

    def forward_ends(self) -> None:
        """No calls of interest come in this step any more."""
        if self._calls is not None:
            self._calls.stop()

    def verify(self) -> None:
        """What was rebuilt in this step was right. Raises RecomputeFailed."""
        if self._rebuilder is not None:
            try:
                self._rebuilder.verify()
            except RecomputeFailed:
                self._learner.no_recomputes()
                raise

    def ended(self, key: Hashable, known: StepKind | None) -> tuple[StepKind | None, int]:
        """A step has ended.

        Args:
            key: its signature.
            known: what it was.

        Returns:
            What to do from now on, and how many storages the step has shown not to come out the same.
        """
        calls, rebuilder = self._calls, self._rebuilder
        self._calls = self._rebuilder = None
        if calls is not None:
            return self._learner.called(key, known, calls.stop()), 0
        if known is None or rebuilder is None or not known.proofs or known.rebuilder is not rebuilder:
            return known, 0
        wrong = rebuilder.wrong()
        return self._learner.proven(key, known, wrong), len(wrong)
