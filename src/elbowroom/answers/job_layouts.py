"""Layouts: which layout of a job of many fits a GPU, what its step takes, and which ones no other one beats.

Computes: an estimate and a simulated step of each layout. If a value is searched, such as the batch of a rank, each
layout has the largest one that fits. Steps of different layouts do different work. So times are compared for equal
work, by the floating point operations of all ranks in a step.
Optimal: among the layouts given. The front has those that no other one beats in memory, time for equal work and GPUs.
Ignores: operations that are done twice (recomputed ones count as work), and ranks that are not looked at.
Cost: the captures, one for each rank that is looked at, times the probes of a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.answers.largest import largest
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine
from elbowroom.simulate.simulate import simulate
from elbowroom.trace import Trace
from elbowroom.watch import ENDS, Watch

Place = Mapping[str, int]
"""Values of a layout, by name."""


def words_of(values: Iterable[tuple[str, int]]) -> str:
    """Write the values of a layout as words, such as "ranks = 8, tp = 2"."""
    return ", ".join(f"{name} = {value}" for name, value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of a job.

    Attributes:
        values: what it is, as (name, value).
        ranks: processes of the job, each with a GPU.
        answer: what the rank needs that needs most; None if the script fails.
        step_ns: simulated time of the slowest rank's step; 0 if the script fails.
        work_flops: floating point operations of all ranks in a step; 0 if none is known.
        problem: why the script fails; "" if it does not.
    """

    values: tuple[tuple[str, int], ...]
    ranks: int
    answer: Estimate | None
    step_ns: int = 0
    work_flops: int = 0
    problem: str = ""

    @property
    def fits(self) -> bool:
        """Whether each rank that was looked at fits its GPU."""
        return self.answer is not None and self.answer.fits

    @property
    def needed_bytes(self) -> int:
        """The least memory of a GPU in which it runs; 0 if the script fails."""
        return 0 if self.answer is None else self.answer.needed_bytes

    def equal_work_ns(self, work_flops: int) -> int:
        """Return the time in which it does as much work; that of a step if either work is unknown."""
        if not self.work_flops or not work_flops:
            return self.step_ns
        return self.step_ns * work_flops // self.work_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """The layouts that were looked at.

    Attributes:
        machine: name of the GPU.
        capacity_bytes: its memory.
        layouts: the layouts, in the order in which they were looked at.
        early: what was not looked at, if the search ended early; else "".
    """

    machine: str
    capacity_bytes: int
    layouts: tuple[Layout, ...]
    early: str = ""

    @property
    def work_flops(self) -> int:
        """Work that times are compared for: that of a step of the first layout that fits, else of the first one."""
        known = sorted((each for each in self.layouts if each.work_flops), key=lambda each: not each.fits)
        return known[0].work_flops if known else 0

    @property
    def cheapest(self) -> Layout | None:
        """The layout on the fewest GPUs that fits; the fastest of these for equal work. None if no layout fits."""
        fitting = [each for each in self.layouts if each.fits]
        return min(fitting, key=lambda each: (each.ranks, self.equal_work_ns(each)), default=None)

    @property
    def least_gpu_time(self) -> Layout | None:
        """The layout that fits and does equal work in the least time summed over its GPUs; None if no layout fits."""
        fitting = [each for each in self.layouts if each.fits]
        return min(fitting, key=lambda each: (each.ranks * self.equal_work_ns(each), each.ranks), default=None)

    @property
    def front(self) -> tuple[Layout, ...]:
        """The layouts that fit, of which no other one needs no more memory, time for equal work and GPUs."""
        fitting = [each for each in self.layouts if each.fits]
        marks = [(each.needed_bytes, self.equal_work_ns(each), each.ranks) for each in fitting]
        return tuple(
            each for each, mark in zip(fitting, marks, strict=True) if not any(_beats(other, mark) for other in marks)
        )

    def equal_work_ns(self, layout: Layout) -> int:
        """Return the time in which a layout does the work of `work_flops`."""
        return layout.equal_work_ns(self.work_flops)


def _beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def layouts_of(
    places: Sequence[Place],
    ranks_of: Callable[[Place], int],
    captured: Callable[[Place], Sequence[Trace]],
    machine: Machine,
    *,
    searched: tuple[str, int, int] | None = None,
    watch: Watch | None = None,
) -> Layouts:
    """Look at layouts.

    Args:
        places: the values of each layout.
        ranks_of: returns the processes of a layout.
        captured: returns the traces of the ranks to look at; raises CaptureError if the script fails.
        machine: the GPU of each rank.
        searched: (name, least, most) of which the largest value that fits is looked for; None if nothing is searched.
        watch: reports progress, and ends the search early with the layouts so far.

    Raises:
        CaptureError: the script fails in every layout.
        TimeOver: the time of `watch` is over, and no layout is known.
    """
    found: list[Layout] = []
    try:
        found.extend(_TriedLayout(place, ranks_of(place), captured, machine).best(searched) for place in places)
    except ENDS as problem:
        if watch is None or not found:
            raise
        watch.ends_early(problem, f"{len(found)} of {len(places)} layouts were looked at")
    if not any(each.answer for each in found):
        raise CaptureError(f"the script fails in each of {len(found)} layouts; the first one {found[0].problem}")
    capacity_bytes, early = machine.tiers[0].capacity_bytes, watch.early if watch else ""
    return Layouts(machine=machine.name, capacity_bytes=capacity_bytes, layouts=tuple(found), early=early)


@final
class _TriedLayout:
    """A layout, with each value of what is searched that was tried."""

    def __init__(
        self, place: Place, ranks: int, captured: Callable[[Place], Sequence[Trace]], machine: Machine
    ) -> None:
        self._place = place
        self._ranks = ranks
        self._captured = captured
        self._machine = machine
        self._tried: dict[int, Layout] = {}

    def best(self, searched: tuple[str, int, int] | None) -> Layout:
        """Return the layout, with the largest value that fits; the least one if none fits."""
        try:
            if searched is None:
                return self._with(self._place)
            name, least, most = searched
            found = largest(
                lambda value: self._needed(name, value),
                self._machine.tiers[0].capacity_bytes,
                least=least,
                most=most,
            )
        except CaptureError as problem:
            values = tuple(self._place.items())
            return Layout(values=values, ranks=self._ranks, answer=None, problem=str(problem))
        return self._tried[least if found.value is None else found.value]

    def _needed(self, name: str, value: int) -> int:
        made = self._tried[value] = self._with({**self._place, name: value})
        return made.needed_bytes

    def _with(self, place: Place) -> Layout:
        traces = self._captured(place)
        answers = [estimate(trace, self._machine, plans=False) for trace in traces]
        flops = [sum(op.flops for op in trace.ops[slice(*trace.steps[-1])]) for trace in traces]
        return Layout(
            values=tuple(place.items()),
            ranks=self._ranks,
            answer=max(answers, key=lambda each: (not each.fits, each.needed_bytes)),
            step_ns=max(simulate(trace, self._machine).step_ns for trace in traces),
            work_flops=self._ranks * sum(flops) // len(flops),
        )
