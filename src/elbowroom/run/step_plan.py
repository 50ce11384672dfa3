"""Following a plan: carries out its actions when a storage is saved or read back, and at the other ticks.

This code runs for each saved storage of a step, so it makes few calls: see docs/benchmarks.md, "What each storage costs
the host".

Note: [Back later]
A tick at a save comes while the op's callers still hold its inputs; the simulation frees them with the op. So a swap
back that is planned there may find no memory. It is tried again at each later tick, until its storage is read: then
what idles makes room, as for any op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from elbowroom.capture.recording.recorder import Recorder
from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import Executor
from elbowroom.run.recompute.in_step import StepRecomputes
from elbowroom.run.step_kinds import StepKind
from elbowroom.step.schedule import Action
from elbowroom.torch_compat.core import version_of


@final
class Following:
    """Part of a run that carries out plans.

    Args:
        executor: moves the storages.
        recomputes: drops and rebuilds them.
        state_of: returns the optimizer state or gradient of a window that is not of a save.

    Attributes:
        entries: the saved storages of the step, by n.
        refused: number of entries that were swapped although the plan drops them.
    """

    def __init__(self, executor: Executor, recomputes: StepRecomputes, state_of: Callable[[int], Entry | None]) -> None:
        self._executor = executor
        self._recomputes = recomputes
        self._state_of = state_of
        self.entries: list[Entry] = []
        self.refused = 0
        self._later: list[Entry] = []

    def begin(self) -> list[Entry]:
        """Begin a step. Returns its list of entries, which grows during the step."""
        self.entries = []
        self.refused = 0
        self._later = []
        return self.entries

    def save(
        self, known: StepKind, n: int, storage: torch.UntypedStorage, tensor: torch.Tensor, recorder: Recorder | None
    ) -> Entry:
        """Keep, swap or drop the n-th saved storage of a step, and act as planned at its tick."""
        executor, turn = self._executor, known.turns[n]
        entry = executor.add(n, storage, version_of(tensor))
        try:
            if recorder is not None:
                recorder.saved(entry, storage, tensor.dtype)
            if turn.tier is not None:
                executor.swap_out(entry, turn.tier)
            if known.schedule.dropped and not self._recomputes.saved(known, entry, storage, tensor):
                self.refused += 1
            self.act(turn.on_save)
        except BaseException:  # autograd makes no handle then, whose death would free the entry
            executor.handle_died(entry)
            raise
        self.entries.append(entry)
        return entry

    def read(self, known: StepKind, entry: Entry) -> None:
        """Act as planned before a saved tensor of this step is read."""
        n, entries = entry.n, self.entries
        if n < len(entries) and entries[n] is entry:
            actions = known.turns[n].on_read
            self.act(actions[entry.reads] if entry.reads < len(actions) else None)

    def act(self, action: Action | None) -> None:
        """Carry out an action of the plan: see Note: [Ticks] in schedule.py."""
        executor = self._executor
        if self._recomputes.has_own_writes:
            executor.settle()
        if action is None:
            executor.writes_done(0)
            if self._later:
                self._bring_back(())
            return
        back: list[Entry] = []
        for n in action.back:
            entry = self.entries[n] if n < len(self.entries) else self._state_of(n)
            if entry is not None:
                back.append(entry)
                executor.want(entry)
        executor.writes_done(action.writes_done)
        if back or self._later:
            self._bring_back(back)
        if action.rebuild:
            self._recomputes.rebuild(action.rebuild)

    def _bring_back(self, entries: Sequence[Entry]) -> None:
        """Start swaps back, and those that found no memory before: Note: [Back later]."""
        due, self._later = [*self._later, *entries], []
        for place, entry in enumerate(due):
            if not self._executor.bring_back_early(entry):
                self._later = due[place:]
                return
