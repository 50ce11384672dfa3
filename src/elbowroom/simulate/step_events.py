"""Step events: what the allocator meets in each of some equal steps, with a name for every block.

The blocks that a step leaves are those that the next one finds, so their names differ from step to step. All else is
the same in each step, and is made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, final

import numpy as np

from elbowroom.allocator.replay import Event
from elbowroom.step.last_step import Ints, LastStep, listed


class DueEvent(NamedTuple):
    """One event of the allocator at a point; `run` is the (rebuild, turn of its recipe) that makes it.

    Among events with the same point and `order`, the smaller `place` comes first.
    """

    point: int
    order: int
    event: Event
    run: tuple[int, int] = (-1, -1)
    place: int = 0


in_order = attrgetter("point", "order", "place")
"""Key of the order of events in a step."""


VERBATIM, ALLOC, FREE, FREE_EARLIER = range(4)
"""Kinds of events of a template: as it is; a block of the step is allocated, freed; one from before it is freed."""


class StepBlocks:
    """Names of blocks over equal steps: the blocks that one step leaves are found by the next, if their sizes agree.

    Args:
        step: the step that is played.
        before: events before the first step.
    """

    def __init__(self, step: LastStep, before: Sequence[Event]) -> None:
        self._sizes = listed(step.storage_bytes)
        end = len(step.level)
        inside = [e for e in step.trace.events if step.first_op <= e.op < step.end_op]
        self._found = [e.storage for e in inside if e.size_bytes < 0 and step.born[e.storage] == 0]
        self._left = [e.storage for e in inside if e.size_bytes > 0 and step.gone[e.storage] == end]
        self._number = 2
        self._held: dict[int, int] = {}
        for what, *rest in before:
            if what == "alloc":
                self._held[rest[0]] = rest[0]
            elif what == "free":
                self._held.pop(rest[0], None)

    @property
    def held(self) -> dict[int, int]:
        """Names of the blocks that the next step finds, by their storages; a copy."""
        return self._held.copy()

    def play(self, template: StepTemplate) -> tuple[list[Event], Ints]:
        """Return the events of one step, and the number of them up to each one of the template.

        Scratch memory and what recipes make on their way are gone at the end of a step: their names serve each step.
        """
        held, shift, events = self._held, self._number * len(self._sizes), template.events.copy()
        missing = list[int]()
        for at, kind, key in template.renamed:
            event = events[at]
            if kind == ALLOC:
                events[at] = ("alloc", key + shift, *event[2:])
            elif kind == FREE:
                events[at] = ("free", key + shift)
            elif (name := held.pop(key, None)) is not None:
                events[at] = ("free", name)
            else:
                missing.append(at)
        held.update((key, key + shift) for key in template.left)
        ends = np.arange(1, len(events) + 1)
        for at in reversed(missing):
            del events[at]
            ends[at:] -= 1
        return events, ends

    def next_step(self) -> list[Event]:
        """Pass blocks on to the next step; return events that free those that no later step would free."""
        by_size: dict[int, list[int]] = {}
        for storage in self._left:
            name = self._held.pop(storage, None)
            if name is not None:
                by_size.setdefault(self._sizes[storage], []).append(name)
        for storage in self._found:
            same = by_size.get(self._sizes[storage])
            if same:
                self._held[storage] = same.pop(0)
        self._number += 1
        return [("free", name) for names in by_size.values() for name in names]


@final
class StepEvents:
    """The events of equal steps. Those of a step are made once, when the first replay comes to it."""

    def __init__(self, blocks: StepBlocks, first: StepTemplate, others: StepTemplate) -> None:
        self._blocks, self._first, self._others = blocks, first, others
        self._made: list[MadeEvents] = []

    def of(self, turn: int) -> MadeEvents:
        """Return the events of a step."""
        while len(self._made) <= turn:
            events, ends = self._blocks.play(self._others if self._made else self._first)
            events += self._blocks.next_step()
            self._made.append(MadeEvents(events, ends, self._blocks.held))
        return self._made[turn]


class MadeEvents(NamedTuple):
    """The events of one of some equal steps.

    Attributes:
        events: the events.
        ends: the number of them up to each one that is due in the step.
        held: storage -> name of its block, for those that the next step finds.
    """

    events: list[Event]
    ends: Ints
    held: Mapping[int, int]


class StepTemplate:
    """Events that are due in a step, sorted once for all equal steps.

    Attributes:
        events: the events, where those that differ from step to step lack their block's name.
        renamed: place, kind and storage of each of these.
        left: storages whose blocks, allocated in the step, it does not free.
    """

    def __init__(self, step: LastStep, due: Sequence[DueEvent]) -> None:
        own, shift = dict[int, None](), len(step.storage_bytes)
        kinds = list[int]()
        for each in due:
            event = each.event
            if len(event) == 1 or not isinstance(key := event[1], int):
                kinds.append(VERBATIM)
            elif event[0] == "alloc":
                own[key] = None
                kinds.append(ALLOC)
            else:
                kinds.append(FREE if key in own else FREE_EARLIER)
                own.pop(key, None)
        self.left = tuple(own)
        self.events: list[Event] = []
        self.renamed: list[tuple[int, int, int]] = []
        for at, (kind, each) in enumerate(zip(kinds, due, strict=True)):
            event = each.event
            if kind == VERBATIM:
                self.events.append(event)
            elif kind == FREE_EARLIER or event[1] in own:
                self.events.append(event)
                self.renamed.append((at, kind, event[1]))
            else:
                self.events.append((event[0], event[1] + shift, *event[2:]))
