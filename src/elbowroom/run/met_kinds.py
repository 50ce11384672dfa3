"""Kinds of steps that a training has met: which one a step is, which comes next, which are waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import final

from elbowroom.run.kind_totals import Kinds
from elbowroom.run.similar_shapes import Nearby
from elbowroom.run.step_kinds import Saved, StepKind, UnknownKind

MAX_OBSERVATIONS = 8
"""Most times that a kind of step is observed when its steps keep differing; after that their rest is swapped."""

OBSERVED_AT_FIRST = 8
OBSERVED_SHARE = 4
"""The first `OBSERVED_AT_FIRST` steps may all be observed, then one in `OBSERVED_SHARE`. Recording takes longer."""


@final
class MetKinds:
    """The kinds of steps of a run.

    Args:
        min_size_bytes: smaller storages are not seen.

    Attributes:
        totals: what the kinds hold.
        nearby: finds the kind that steps of other sizes may follow.
        optimizers: number of optimizers that have stepped by now: each has made states, which stay.
    """

    def __init__(self, min_size_bytes: int) -> None:
        self._known: dict[Hashable, list[StepKind]] = {}
        self.totals = Kinds()
        self.nearby = Nearby(self._known, min_size_bytes)
        self.optimizers = 0
        self._optimizers_at: dict[Hashable, int] = {}
        self._wanted: dict[Hashable, UnknownKind] = {}
        self._observations: Counter[Hashable] = Counter()
        self._measured = 0
        self._after: dict[Saved, Saved] = {}
        self._previous: Saved = ()
        self._optimizer_steps: dict[Hashable, int] = {}

    def __iter__(self) -> Iterator[tuple[Hashable, StepKind]]:
        """Iterate over signatures, each with a kind of its steps. Kinds may be learnt meanwhile."""
        return iter([(key, kind) for key, kinds in self._known.items() for kind in kinds])

    def expected(self, key: Hashable) -> StepKind | None:
        """Return the known kind that the next step, of this signature, will most likely be; None if there is none."""
        known = self._known.get(key)
        if not known:
            return None
        next_saved = self._after.get(self._previous)
        return next((kind for kind in known if kind.schedule.saved == next_saved), known[-1])

    def awaits(self, key: Hashable) -> bool:
        """Whether steps of this signature are observed until one of an unknown kind was recorded."""
        return key in self._wanted and (not self._known.get(key) or self._observations[key] < MAX_OBSERVATIONS)

    def only(self, key: Hashable) -> bool:
        """Whether all steps of this signature were of one kind so far."""
        return len(self._known.get(key, ())) == 1 and key not in self._wanted

    def ended(self, key: Hashable, was: StepKind | None, saved: Saved) -> StepKind | None:
        """Return the kind of a step that has ended, now that all its saves are known; None if it is an unknown kind.

        Args:
            key: its signature.
            was: the kind that it was taken for; None if it was observed.
            saved: all that it saved.
        """
        self._after[self._previous] = saved
        self._previous = saved
        if was is None or was.was(saved):
            return was
        found = next((kind for kind in self._known.get(key, []) if kind.schedule.saved == saved), None)
        if found is None:
            self.wants(key, saved)
        return found

    def other(self, key: Hashable, saved: Saved) -> StepKind | None:
        """Return a known kind of this signature that begins with these saves; None if there is no such kind."""
        return next((known for known in reversed(self._known.get(key, [])) if known.agrees(saved)), None)

    def wants(self, key: Hashable, saved: Saved) -> None:
        """Observe until a step with all these saves was recorded: its kind is unknown, or has no plan of its own."""
        self._wanted[key] = UnknownKind(saved, whole=True)

    def surprised(self, key: Hashable, saved: Saved) -> None:
        """Note a step of unknown kind that began with these saves: observe until a step of its kind was recorded."""
        self._wanted[key] = UnknownKind(saved, whole=False)

    def held_more(self, key: Hashable, known: StepKind | None, saved: Saved) -> None:
        """Note a step that held more than the budget. If it followed another kind's plan, its kind gets its own."""
        if known is not None and known.shared:
            self.wants(key, saved)

    def learnt(self, key: Hashable, known: StepKind) -> None:
        """Replace what was known of the same kind."""
        kinds = [kind for kind in self._known.get(key, []) if kind.schedule.saved != known.schedule.saved]
        self._known[key] = [*kinds, known]
        self.totals.of(key).planned_peak_bytes = known.planned_bytes
        self.nearby.learnt(key)
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.found(known):
            del self._wanted[key]

    def forget(self, key: Hashable, known: StepKind) -> None:
        """Forget one kind."""
        self._known[key].remove(known)

    def forget_all(self, key: Hashable) -> None:
        """Forget all kinds of a signature: its steps follow no plan from now on."""
        self._known.pop(key, None)
        self.nearby.forgotten(key)
        self.totals.of(key).planned_peak_bytes = 0

    def start_anew(self) -> None:
        """Forget all kinds: the budget is another one from now on."""
        for key in list(self._known):
            self.forget_all(key)
        self._observations.clear()
        self._measured = 0

    def observed(self, key: Hashable) -> None:
        """Count a step that was observed."""
        self._observations[key] += 1
        self._optimizers_at[key] = self.optimizers

    def wants_states(self, key: Hashable, known: StepKind) -> bool:
        """Observe a step of this kind again, once, if an optimizer first stepped since one was. Returns whether."""
        if self._optimizers_at.get(key, self.optimizers) >= self.optimizers:
            return False
        self._optimizers_at[key] = self.optimizers
        self.wants(key, known.schedule.saved)
        return True

    def measured(self, known: StepKind) -> None:
        """Count a step of a made up kind that was recorded."""
        self._measured += 1
        known.measured = True

    def records_few(self) -> bool:
        """Whether few steps were recorded until now, so that another one may be."""
        count = self._measured + sum(self._observations.values())
        return count < OBSERVED_AT_FIRST or count * OBSERVED_SHARE <= self.totals.steps

    def optimizer_steps(self, key: Hashable) -> int:
        """Return how many optimizers step in a step of this signature; 1 until one has been seen."""
        return self._optimizer_steps.get(key, 1)

    def optimizers_stepped(self, key: Hashable, count: int) -> bool:
        """Note how many optimizers stepped. Returns whether a recording up to the expected last one is whole."""
        whole = count <= self.optimizer_steps(key)
        self._optimizer_steps[key] = max(count, 1)
        return whole
