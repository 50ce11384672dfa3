"""Rebuilding: drops saved storages as a plan says, and runs its recipes when they are read back.

Note: [Trust, but verify]
A step may differ from its trace in ways that sizes and types do not show, such as another branch of the same shapes. So
four things keep a storage from being dropped: the step has called something else (own_calls.py), the autograd node of
its saved tensor is another one, settings changed, or an input of its recipe is out of reach.

Twice each dropped storage is swapped out too. What its recipe makes is compared with it in every bit. If they differ,
backward gets the original, and that storage is never dropped again. Later steps compare a sample of each.
The parameters and buffers that a recipe reads must not have been written since forward. All this is checked before an
optimizer steps.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import final

import torch

from elbowroom.engine.entries import Entry, Happening, Remake
from elbowroom.engine.executor import Executor
from elbowroom.errors import RecomputeFailed
from elbowroom.run.recompute.call_recorder import Calls, flags_now, node_of
from elbowroom.run.recompute.checksums import Checksums, Samples
from elbowroom.run.recompute.own_calls import OwnCalls
from elbowroom.run.recompute.recompute_programs import Program
from elbowroom.run.recompute.replay_calls import Storages, replay
from elbowroom.torch_compat.core import version_of
from elbowroom.torch_compat.op_calls import modes_on

PROOFS = 2
"""How often every bit of a storage is compared before it is dropped without a copy."""
INSTEAD = "train with within(..., allow=('swap',)), which recomputes nothing"


@final
class Hold:
    """Keeps an input of a recipe alive until the recipe runs."""

    __slots__ = ("entry", "executor", "storage")

    def __init__(self, executor: Executor, entry: Entry) -> None:
        executor.handle_made(entry)
        self.executor = executor
        self.entry = entry
        self.storage = None if entry.leaves else entry.alive()

    def __del__(self) -> None:
        self.executor.handle_died(self.entry)


@final
class Run(Remake):
    """One recipe in one step, from its first dropped storage until it has run or nobody needs those storages.

    Args:
        program: the calls of the recipe.
        step: the step that it belongs to.
        versions: versions of the parameters and buffers that it reads.

    Attributes:
        dropped: the storages that it rebuilds.
        until: how many calls the step had made when the last of them was dropped.
    """

    def __init__(self, program: Program, step: StepRuns, versions: list[int]) -> None:
        self.program = program
        self.dropped: list[Entry] = []
        self.until = 0
        self._step = step
        self._versions = versions
        self._holds: dict[int, Hold] = {}
        self._done = False

    def needs(self, entry: Entry) -> None:
        """Hold a saved entry that the recipe reads."""
        self._holds[entry.n] = Hold(self._step.executor, entry)

    def run(self) -> None:
        """See Remake."""
        with self._step.lock:
            executor = self._step.executor
            missing = [entry for entry in self.dropped if entry.handles and not executor.hold(entry)]
            if missing and not self._done:
                self._try(missing)
            self._done = True
            for entry in self.dropped:
                entry.remake = None
            self.dropped, self._holds = [], {}

    def _try(self, missing: list[Entry]) -> None:
        """Rebuild. A failure in what is proven is no error: its bytes are on the lower tier too."""
        try:
            self._rebuild(missing)
        except Exception:
            if not all(self._step.proves(entry.n) for entry in missing):
                raise
            self._step.wrong.update(entry.n for entry in missing)

    def _rebuild(self, missing: list[Entry]) -> None:
        made: Storages = {}
        clock = _Clock(self._step.executor, self.program, missing[0])
        tell = self._step.executor.observer.recomputes or _nobody
        tell(True)
        try:
            self._check_inputs()
            step = self._step
            calls, device = step.calls, step.executor.device
            replay(self.program, self._input, calls.states, device, made, clock.began, calls.own)
            clock.ended()
            for entry in missing:
                self._step.rebuilt(self.program, entry, made.pop(self.program.makes[entry.n]))
        finally:
            made.clear()  # a traceback would keep all of it alive
            tell(False)

    def _check_inputs(self) -> None:
        calls = self._step.calls
        if not (calls.alike(self.program, self.until) and calls.is_known(self.program)):
            raise RecomputeFailed(
                f"recompute: {self.program.label} has read another storage in this step than the one that was saved; "
                f"what it makes again would be another result; {INSTEAD}"
            )
        found = [None if (tensor := owner()) is None else version_of(tensor) for owner in self.program.owners]
        if found != self._versions:
            raise RecomputeFailed(
                f"recompute: {self.program.label} reads a parameter or buffer that was written or replaced between "
                f"forward and backward; what it makes again would be another result; {INSTEAD}"
            )

    def _input(self, n: int) -> torch.UntypedStorage:
        entry = self._step.entries[n] if n < len(self._step.entries) else None
        if entry is None or (entry.alive() is None and entry.handles == 0):
            raise RecomputeFailed(
                f"recompute: {self.program.label} reads saved storage {n} of its step, which this step does not have; "
                f"{INSTEAD}"
            )
        return self._step.executor.read(entry)


def _nobody(_begins: bool) -> None:
    """Ignore the begin and end of a rebuild: no recorder is on."""


class _Clock:
    """Reports each call to the executor's observer, with the op that it is part of."""

    def __init__(self, executor: Executor, program: Program, entry: Entry) -> None:
        self._executor = executor
        self._program = program
        self._entry = entry
        self._begin_ns = self._first_ns = time.perf_counter_ns()
        self._at: int | None = None

    def began(self, at: int) -> None:
        """Note that a call begins, which ends the one before."""
        self._tell()
        self._at = at

    def ended(self) -> None:
        """Note that the last call has ended."""
        self._tell()
        self._executor.counters.recompute_ns += self._begin_ns - self._first_ns

    def _tell(self) -> None:
        now_ns = time.perf_counter_ns()
        if self._at is not None and self._executor.observer.moved:
            op = self._program.ops[self._at]
            self._executor.observer.moved(Happening("recompute", self._entry, self._begin_ns, now_ns, op=op))
        self._begin_ns = now_ns


@final
class StepRuns:
    """The recipes of one step.

    Args:
        executor: moves the storages.
        entries: the saved storages of the step, by n; the list grows during the step.
        calls: follows the calls of the step.
        samples: samples of the dropped storages, reused by each step of the kind.
        rows: n -> its row of the samples.
        proven: how often each storage was rebuilt with the same bits. What was not rebuilt so `PROOFS` times is swapped
            out too when it is dropped, and every bit is compared.
    """

    def __init__(
        self,
        executor: Executor,
        entries: Sequence[Entry],
        calls: OwnCalls,
        samples: Samples,
        rows: Mapping[int, int],
        proven: Counter[int],
    ) -> None:
        self.executor = executor
        self.entries = entries
        self.calls = calls.step
        self.lock = threading.RLock()
        self.runs: weakref.WeakValueDictionary[int, Run] = weakref.WeakValueDictionary()
        self.wrong: set[int] = set()
        self._proofs: dict[int, torch.Tensor] = {}
        self._proven = proven
        self._checksums: Checksums | None = None
        self._samples = samples
        self._rows = rows

    def proves(self, n: int) -> bool:
        """Whether the n-th saved storage was swapped out when it was dropped, to compare every bit."""
        return n in self._proofs

    def drop(self, run: Run, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Drop a storage that a recipe will rebuild."""
        run.dropped.append(entry)
        run.until = self.calls.made
        if self._proven[entry.n] < PROOFS:
            self._checksums = self._checksums or Checksums(self.executor.device)
            self._proofs[entry.n] = self._checksums.of(storage)
            self.executor.swap_out(entry)
            entry.remake = run
        else:
            self._samples.take(self._rows[entry.n], storage)
            self.executor.drop(entry, run)

    def rebuilt(self, program: Program, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Take the storage that a recipe has made. If its bits differ from the dropped ones, keep the original."""
        if storage.nbytes() != entry.size_bytes:
            raise RecomputeFailed(
                f"recompute: {program.label} made {storage.nbytes()} bytes again where {entry.size_bytes} were saved; "
                f"{INSTEAD}"
            )
        if self._checksums is None or entry.n not in self._proofs:
            self._samples.compare(self._rows[entry.n], storage)
            self.executor.rebuilt(entry, storage)
        elif torch.equal(self._proofs[entry.n], self._checksums.of(storage)):
            self._proven[entry.n] += 1
            self.executor.rebuilt(entry, storage)
        else:
            self.wrong.add(entry.n)


@final
class Rebuilder:
    """Follows the recomputes of one plan, step after step.

    Args:
        executor: moves the storages.
        programs: by index in the plan.
        calls: the calls of the recorded step.
    """

    def __init__(self, executor: Executor, programs: Sequence[Program], calls: Calls) -> None:
        self._executor = executor
        self._nodes = {n: calls.saved[n].node for program in programs for n in program.makes}
        self.own_calls = OwnCalls(executor.device, calls, programs)
        self._program_of = {n: program for program in programs for n in program.makes}
        self._rows = {n: row for row, n in enumerate(sorted(self._program_of))}
        self._readers: dict[int, list[int]] = {}
        for program in programs:
            for n in program.entries:
                self._readers.setdefault(n, []).append(program.index)
        self._samples = Samples(len(self._rows), executor.device)
        self._proven = Counter[int]()
        self._step: StepRuns | None = None

    def begin(self, entries: Sequence[Entry]) -> None:
        """Begin a step."""
        self._samples.begin()
        self.own_calls.begin(entries)
        rows, proven = self._rows, self._proven
        self._step = StepRuns(self._executor, entries, self.own_calls, self._samples, rows, proven)

    @property
    def dropped(self) -> frozenset[int]:
        """The saves that are dropped."""
        return frozenset(self._program_of)

    def saved(self, entry: Entry, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
        """Drop a saved entry if the plan says so. Returns False if that would not be safe.

        Raises:
            TierFull: in a step that proves, the lower tier has no room.
        """
        step, n = self._step, entry.n
        assert step is not None, "a step has begun"
        self.own_calls.saved(n, storage)
        program = self._program_of.get(n)
        fine = program is None or self._drops(step, program, entry, storage, tensor)
        for index in self._readers.get(n, ()):
            if index in step.runs:
                step.runs[index].needs(entry)
        return fine

    def _drops(
        self, step: StepRuns, program: Program, entry: Entry, storage: torch.UntypedStorage, tensor: torch.Tensor
    ) -> bool:
        if node_of(tensor) != self._nodes[entry.n] or modes_on() or not self.own_calls.fits(program, entry.n, storage):
            return False
        run = step.runs.get(program.index) or self._new_run(step, program)
        if run is None:
            return False
        step.drop(run, entry, storage)
        return True

    def _new_run(self, step: StepRuns, program: Program) -> Run | None:
        """Return a run of a recipe; None if an input is out of reach or settings have changed."""
        owners = [owner() for owner in program.owners]
        versions = [version_of(owner) for owner in owners if owner is not None]
        inputs = [step.entries[n] for n in sorted(program.entries) if n < len(step.entries)]
        reachable = all(entry.alive() is not None or entry.handles for entry in inputs)
        if len(versions) < len(owners) or not reachable or flags_now() != program.flags:
            return None
        run = step.runs[program.index] = Run(program, step, versions)
        for entry in inputs:
            run.needs(entry)
        return run

    def rebuild(self, index: int) -> None:
        """Run a recipe of the plan, unless it has run."""
        assert self._step is not None, "a step has begun"
        run = self._step.runs.get(index)
        if run is not None:
            run.run()

    def proves(self, n: int) -> bool:
        """Whether the n-th saved storage of this step was swapped out too, although the plan drops it."""
        return self._step is not None and self._step.proves(n)

    def wrong(self) -> set[int]:
        """Return the saves of this step that were not rebuilt with the same bits; backward got the originals."""
        return self._step.wrong if self._step is not None else set()

    def verify(self) -> None:
        """Compare the samples of this step. Raises RecomputeFailed if one differs."""
        step = self._step
        if step is None:
            return
        rows = self._samples.differing()
        if rows:
            n = sorted(self._program_of)[rows[0]]
            raise RecomputeFailed(
                f"recompute: {self._program_of[n].label} did not give again what it gave in forward (saved storage {n} "
                "of the step), so gradients are wrong, and no optimizer has stepped with them; the step depends on "
                f"something that no call shows, such as a tensor that NumPy writes; {INSTEAD}"
            )
