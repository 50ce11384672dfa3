"""Recomputes in each step: records calls, drops and rebuilds storages, proves and verifies them."""

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
from elbowroom.run.recompute.call_recorder import CallRecorder
from elbowroom.run.recompute.recompute_run import Rebuilder
from elbowroom.run.step_kinds import StepKind


@final
class StepRecomputes:
    """Part of a run that handles recomputes, step after step.

    Args:
        executor: moves the storages.
        learner: knows the kinds of steps.

    Attributes:
        has_own_writes: whether storages are swapped in this step that its plan does not swap.
        records_calls: whether this step records its calls.
    """

    def __init__(self, executor: Executor, learner: Learner) -> None:
        self._executor = executor
        self._learner = learner
        self._calls: CallRecorder | None = None
        self._rebuilder: Rebuilder | None = None
        self._dropping: Rebuilder | None = None
        self.has_own_writes = False
        self._refused: set[int] = set()

    @property
    def records_calls(self) -> bool:
        """Whether this step records its calls."""
        return self._calls is not None

    @property
    def sees_calls(self) -> bool:
        """Whether this step records its calls, or follows those that recipes make again."""
        return self._calls is not None or self._rebuilder is not None

    def begin(self, key: Hashable, known: StepKind | None, entries: Sequence[Entry]) -> None:
        """Begin a step.

        Args:
            key: its signature.
            known: the kind that it should be.
            entries: the saved storages of the step, by n; the list grows during the step.
        """
        self._calls = CallRecorder(self._executor.device) if self._learner.wants_calls(key, known) else None
        self._rebuilder, self._dropping = (known.rebuilder if known is not None else None), None
        self.has_own_writes = False
        self._refused = set()
        if self._rebuilder is not None:
            self._rebuilder.begin(entries)

    def follow(self) -> None:
        """See the calls of the step from now on: to record them, or as recipes make them again."""
        if self._calls is not None:
            self._calls.start()
        elif self._rebuilder is not None:
            self._rebuilder.own_calls.start()

    def paused(self) -> AbstractContextManager[None]:
        """Return a context for the run's own work, which is not part of the step."""
        return CallRecorder.paused() if self.sees_calls else NOTHING

    def saves(self, n: int, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """Note the n-th saved storage of the step, if calls are recorded."""
        if self._calls is not None:
            self._calls.saves(n, storage, tensor)

    def saved(self, known: StepKind, entry: Entry, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
        """Drop a saved storage if the plan says so.

        Returns:
            False if the plan drops it but that would not be safe: then it is swapped.
        """
        fine = self._rebuilder is not None and self._rebuilder.saved(entry, storage, tensor)
        if fine or entry.n not in known.schedule.dropped:
            self.has_own_writes = self.has_own_writes or (
                self._rebuilder is not None and self._rebuilder.proves(entry.n)
            )
            return True
        self.has_own_writes = True
        self._refused.add(entry.n)
        self._executor.swap_out(entry)
        return False

    def rebuild(self, indices: Sequence[int]) -> None:
        """Run these recipes of the plan."""
        if self._rebuilder is not None:
            for index in indices:
                self._rebuilder.rebuild(index)

    def differs(self) -> None:
        """Drop nothing more in a step that is not the expected one."""
        self.forward_ends()
        self._dropping, self._rebuilder = self._dropping or self._rebuilder, None
        self._calls = None

    def forward_ends(self) -> None:
        """Stop recording and following calls: forward is over."""
        if self._calls is not None:
            self._calls.stop()
        if self._rebuilder is not None:
            self._rebuilder.own_calls.stop()

    def verify(self) -> None:
        """Check that what was rebuilt in this step was right. Raises RecomputeFailed."""
        rebuilder = self._rebuilder or self._dropping
        if rebuilder is not None:
            try:
                rebuilder.verify()
            except RecomputeFailed:
                self._learner.no_recomputes()
                raise

    def ended(self, key: Hashable, known: StepKind | None) -> tuple[StepKind | None, int]:
        """End a step.

        Args:
            key: its signature.
            known: its kind.

        Returns:
            What to do from now on, and the number of storages that were not rebuilt with the same bits.
        """
        calls, rebuilder = self._calls, self._rebuilder
        self._calls = self._rebuilder = None
        if calls is not None:
            return self._learner.called(key, known, calls.stop()), 0
        if known is None or rebuilder is None or known.rebuilder is not rebuilder:
            return known, 0
        wrong = rebuilder.wrong()
        if known.proofs or wrong:
            known = self._learner.proven(key, known, wrong)
        if known.rebuilder is rebuilder:
            known = self._learner.refused(key, known, self._refused)
        return known, len(wrong)
