"""Estimate: does a training fit a machine, what does it need, and what holds the memory at the peak.

Computes: every alloc and free of a trace, replayed through the model of the machine's allocator. One replay has room
for everything. The other one has the device's capacity less the memory outside the allocator.
Reference: DNNMem (ESEC/FSE 2020) for the categories. The replay is exact for exact events (docs/estimate.md). Bytes
that are not known exactly are an interval: convolution workspaces, which cuDNN chooses, and memory outside the
allocator.
Ignores: other processes on the device; allocations of libraries past the allocator beyond `Machine.outside_bytes`.
Cost: a replay, linear in the events of the trace, and about ten from where memory runs short (allocator/within.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from elbowroom.allocator import Replay, replay
from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.allocator.replay import Event
from elbowroom.allocator.settings import as_set_by_script
from elbowroom.allocator.within import CapacityReplays
from elbowroom.answers.memory_by_module import ModuleShare, shares_of
from elbowroom.answers.planned_training import PlannedTraining, planned_training
from elbowroom.machine import Machine
from elbowroom.notebook_tables import byte_bars, notebook_table
from elbowroom.simulate.energy import Energy, kept_energy
from elbowroom.simulate.reserved_curve import streams_of
from elbowroom.step.last_step import Ints, listed
from elbowroom.step.workspaces import conv_workspaces
from elbowroom.trace import Category, Phase, Trace
from elbowroom.units import format_bytes

WORKSPACE_FACTOR = 2
"""Upper end of the interval of a convolution workspace, as a multiple of its size, if the trace has no interval."""

NEED_PRECISION = Fraction(1, 256)
"""Precision of `needed_bytes`, as a part of it: the bisection ends there."""


class Interval(NamedTuple):
    """Bytes as an interval; all three are equal if the bytes are known exactly."""

    low_bytes: int
    likely_bytes: int
    high_bytes: int


class Moment(NamedTuple):
    """A place in a training.

    Attributes:
        step: number of the step, from 1; 0 before the first step, and one more than the last after that.
        phase: part of the step.
        op: its id; -1 before the first.
        op_name: name of the op; "" before the first.
        module: path of the module that called it; "" outside any.
        op_of_step: number of the op in its step, from 1; 0 outside the steps.
        ops_in_step: ops of that step; 0 outside the steps.
    """

    step: int
    phase: Phase
    op: int
    op_name: str
    module: str
    op_of_step: int
    ops_in_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a training needs on one machine.

    Attributes:
        machine: its name.
        capacity_bytes: of its device tier.
        outside: device memory outside the allocator.
        fits: whether no allocation fails within the capacity less `outside.likely_bytes`.
        sure: whether both ends of the intervals give the same verdict.
        retries: number of times that the allocator empties its cache to fit; each waits for the device.
        peak_allocated: most bytes in live blocks, over the whole trace, as torch.cuda.max_memory_allocated has it.
        peak_reserved: most bytes that the allocator holds if there is room for everything.
        peak_reserved_within_bytes: the same within the capacity; if the training does not fit, up to the failure.
        peak_device: bytes reserved within the capacity (if it fits) plus `outside`, as nvidia-smi would show it.
        needed_bytes: least capacity in which no allocation fails, to `NEED_PRECISION`; the cache is emptied as needed.
        steps: number of recorded steps.
        peak: where the allocated peak is, the first time.
        failure: where the first allocation fails; None if the training fits.
        categories: requested bytes at the allocated peak per category, largest first.
        modules: requested bytes at the allocated peak per module, the ten largest first.
        other_modules_bytes: requested bytes at the allocated peak of all further modules.
        rounding_bytes: bytes that the allocator's rounding adds at the allocated peak.
        planned: if it does not fit: how it would train there under a plan; None if that was not asked or would take
            too long.
        energy: simulated energy of a step with everything kept; None if the board's power is not known.
    """

    machine: str
    capacity_bytes: int
    outside: Interval
    fits: bool
    sure: bool
    retries: int
    peak_allocated: Interval
    peak_reserved: Interval
    peak_reserved_within_bytes: int
    peak_device: Interval
    needed_bytes: int
    steps: int
    peak: Moment
    failure: Moment | None
    categories: tuple[tuple[Category, int], ...]
    modules: tuple[ModuleShare, ...]
    other_modules_bytes: int
    rounding_bytes: int
    planned: PlannedTraining | None = None
    energy: Energy | None = None

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes in live blocks."""
        return self.peak_allocated.likely_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes that the allocator holds if there is room for everything."""
        return self.peak_reserved.likely_bytes

    @property
    def peak_device_bytes(self) -> int:
        """Most bytes on the device: reserved ones and those outside the allocator."""
        return self.peak_device.likely_bytes

    @property
    def free_bytes(self) -> int:
        """Capacity less the needed bytes; negative if bytes are missing."""
        return self.capacity_bytes - self.needed_bytes

    def _repr_html_(self) -> str:
        """Return the answer as a table for notebooks: whether it fits, and what holds the memory."""
        doubt = "" if self.sure else ", by the likely figures"
        said = "fits" if self.fits else "does not fit"
        facts = [
            ("least it runs in", f"{format_bytes(self.needed_bytes)} of {format_bytes(self.capacity_bytes)}"),
            ("peak allocated", format_bytes(self.peak_allocated_bytes)),
            ("peak reserved, with room", format_bytes(self.peak_reserved_bytes)),
            ("the peak is at", moment_label(self.peak)),
        ]
        if self.energy is not None:
            facts.append(("energy of a step, simulated", self.energy.words))
        if self.planned is not None and self.planned.fits:
            facts.append(("with a plan, simulated", f"{self.planned.slowdown:.2f} times the step time"))
        held = [(category.replace("_", " "), size_bytes) for category, size_bytes in self.categories]
        held += [(share.module or share.source_line or "no module", share.size_bytes) for share in self.modules]
        bars = byte_bars(held, self.peak_allocated_bytes)
        title = f"Estimate on {self.machine}: {said}{doubt}"
        return notebook_table(title, facts, bars, "at the allocated peak, by category and by module")


def estimate(trace: Trace, machine: Machine, *, plans: bool = True) -> Estimate:
    """Estimate whether a training fits a machine, and what it needs.

    Args:
        trace: what the training does; its whole length counts, ops before the first step included.
        machine: the GPU: its capacity and its memory outside the allocator are used. Its allocator settings are used
            if the script makes none itself.
        plans: where the training does not fit, also plan it quickly (`Estimate.planned`), which takes some seconds.

    Returns:
        The answer. Its intervals are single values if no workspace is modelled and the memory outside the allocator is
        known.
    """
    found = _of_needs(trace, machine)
    return found if found.fits or not plans else replace(found, planned=planned_training(trace, machine))


def _of_needs(trace: Trace, machine: Machine) -> Estimate:
    """Return the estimate without a plan."""
    cases, outside = _three(trace, machine), _outside(machine)
    capacity_bytes = machine.tiers[0].capacity_bytes
    within, sure = _verdict(cases, capacity_bytes, outside)
    free = [case.with_room for case in cases]
    reserved = _interval([played.peak_reserved_bytes for played in free])
    held = _held(trace, free[0].peak_event)
    modules, other_modules_bytes = shares_of(trace, held)
    needed_bytes = _needed(cases, within, capacity_bytes - outside.likely_bytes) + outside.likely_bytes
    return Estimate(
        machine=machine.name,
        capacity_bytes=capacity_bytes,
        outside=outside,
        fits=within.fits,
        sure=sure,
        retries=within.retries,
        peak_allocated=_interval([played.peak_allocated_bytes for played in free]),
        peak_reserved=reserved,
        peak_reserved_within_bytes=within.peak_reserved_bytes,
        peak_device=_device(cases, capacity_bytes, outside),
        needed_bytes=needed_bytes,
        steps=len(trace.steps),
        peak=_moment(trace, free[0].peak_event),
        failure=None if within.failed_event is None else _moment(trace, within.failed_event),
        categories=_categories(trace, held),
        modules=modules,
        other_modules_bytes=other_modules_bytes,
        rounding_bytes=max(0, free[0].peak_allocated_bytes - sum(trace.storages[s].size_bytes for s in held)),
        energy=kept_energy(trace, machine),
    )


def moment_label(moment: Moment) -> str:
    """Name a place in a training in words, such as "step 2, backward, aten.mm in GPT.head (op 210 of 480)"."""
    if moment.op < 0:
        return "before the first op"
    module = f" in {moment.module}" if moment.module else ""
    place = f" (op {moment.op_of_step} of {moment.ops_in_step})" if moment.ops_in_step else ""
    step = f"step {moment.step}" if moment.ops_in_step else "outside the recorded steps"
    return f"{step}, {moment.phase}, {moment.op_name}{module}{place}"


def trials(trace: Trace) -> frozenset[int]:
    """Return the workspaces of algorithm trials: they are freed right before the cache is emptied.

    A trial takes the room there is: if there is less, torch tries with less (Conv_v8.cpp).
    """
    found: set[int] = set()
    for place in trace.empties:
        _, storage, size_bytes = trace.events[place - 1]
        if place > 1 and size_bytes < 0 and trace.events[place - 2].storage == storage:
            found.add(storage)
    return frozenset(s for s in found if trace.storages[s].category == "workspace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """One replay; events are numbered as in the trace.

    Attributes:
        peak_event: the first event after which the allocated peak is reached.
        failed_event: the first allocation that fails, if any does.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    failed_event: int | None
    retries: int

    @property
    def fits(self) -> bool:
        return self.failed_event is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A sequence of events, and its replay with room for everything.

    Attributes:
        numbers: number in the trace of each event.
        spared: storages that a convolution can do without: if they fail, torch takes another algorithm.
        again: replays the events within capacities; None if each block has just the requested bytes.
    """

    events: Sequence[Event]
    numbers: Ints
    spared: frozenset[int]
    with_room: _Played
    again: CapacityReplays | None

    def within(self, capacity_bytes: int) -> _Played:
        """Replay the events within a capacity."""
        if 0 <= self.with_room.peak_reserved_bytes <= capacity_bytes:
            return self.with_room
        if self.again is None:
            return _play_exact(self.events, self.numbers, max(0, capacity_bytes))
        return _played(self.again.replay(max(0, capacity_bytes)), self.events, self.numbers, self.spared)


def _three(trace: Trace, machine: Machine) -> tuple[_Case, _Case, _Case]:
    """Return the likely case, and those in which every workspace of unknown size has its least and its most bytes."""
    bounds = workspace_bounds(trace)
    settings = as_set_by_script(machine, trace).allocator
    likely = _case(trace, settings, {})
    if not bounds:
        return likely, likely, likely
    low, high = ({storage: both[end] for storage, both in bounds.items()} for end in (0, 1))
    return likely, _case(trace, settings, low), _case(trace, settings, high)


def workspace_bounds(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return the least and the most bytes of each workspace of unknown size, by storage."""
    sizes = {storage: trace.storages[storage].size_bytes for storage in conv_workspaces(trace)}
    assumed = {storage: (0, WORKSPACE_FACTOR * size_bytes) for storage, size_bytes in sizes.items()}
    return assumed | {each.storage: (each.least_bytes, each.most_bytes) for each in trace.workspaces}


def _verdict(cases: tuple[_Case, _Case, _Case], capacity_bytes: int, outside: Interval) -> tuple[_Played, bool]:
    """Return the likely replay within the capacity, and whether the other end of the intervals agrees with it."""
    likely, low, high = cases
    within = likely.within(capacity_bytes - outside.likely_bytes)
    if within.fits:
        return within, high.within(capacity_bytes - outside.high_bytes).fits
    return within, not low.within(capacity_bytes - outside.low_bytes).fits


def _case(trace: Trace, settings: str, other_bytes: Mapping[int, int]) -> _Case:
    """Make the case of a trace in which some storages have other sizes; a size of 0 leaves a storage out."""
    events: list[Event] = []
    numbers: list[int] = []
    exact, spared = settings == "exact", conv_workspaces(trace)
    on = {} if exact else streams_of(trace)
    empties = set(trace.empties) if not exact else set[int]()
    other_bytes = {**other_bytes, **dict.fromkeys(trials(trace), 0)} if exact else other_bytes
    for number, (_, storage, size_bytes) in enumerate(trace.events):
        if number in empties:
            events.append(("empty_cache",))
            numbers.append(number)
        size = other_bytes.get(storage, abs(size_bytes))
        if size:
            events.append(("alloc", storage, size, *on.get(storage, ())) if size_bytes > 0 else ("free", storage))
            numbers.append(number)
    kept = np.array(numbers, np.int64)
    if exact or not events:
        return _Case(events=events, numbers=kept, spared=spared, with_room=_play_exact(events, kept, None), again=None)
    done = replay(events, settings)
    with_room = _played(done, events, kept, spared)
    again = CapacityReplays(events, settings, done, least_bytes=with_room.peak_allocated_bytes, spared=spared)
    return _Case(events=events, numbers=kept, spared=spared, with_room=with_room, again=again)


def _played(done: Replay, events: Sequence[Event], numbers: Ints, spared: frozenset[int]) -> _Played:
    failed = [place for place in listed(np.flatnonzero(done.out_of_memory)) if events[place][1] not in spared]
    # Events after a failure would not happen.
    end = int(failed[0]) + 1 if len(failed) else len(numbers)
    return _Played(
        peak_allocated_bytes=int(done.allocated_bytes[:end].max()),
        peak_reserved_bytes=int(done.reserved_bytes[:end].max()) if len(failed) else done.peak_reserved_bytes,
        peak_event=int(numbers[int(done.allocated_bytes[:end].argmax())]),
        failed_event=int(numbers[end - 1]) if len(failed) else None,
        retries=int(done.retries[end - 1]),
    )


def _play_exact(events: Sequence[Event], numbers: Ints, capacity_bytes: int | None) -> _Played:
    if not events:
        return _Played(peak_allocated_bytes=0, peak_reserved_bytes=0, peak_event=-1, failed_event=None, retries=0)
    size: dict[int, int] = {event[1]: event[2] for event in events if len(event) == 3}
    level = np.cumsum([event[2] if len(event) == 3 else -size.get(event[1], 0) for event in events])
    failed = np.flatnonzero(level > capacity_bytes) if capacity_bytes is not None else np.zeros(0, np.int64)
    end = int(failed[0]) if len(failed) else len(numbers)
    peak_bytes = int(level[:end].max()) if end else 0
    return _Played(
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=peak_bytes,
        peak_event=int(numbers[int(level[:end].argmax())]) if end else -1,
        failed_event=int(numbers[end]) if len(failed) else None,
        retries=0,
    )


def _device(cases: tuple[_Case, _Case, _Case], capacity_bytes: int, outside: Interval) -> Interval:
    """Return the most bytes on the device: within its capacity if it fits, else with room for everything."""
    likely, low, high = (
        next(played.peak_reserved_bytes for played in (case.within(room_bytes), case.with_room) if played.fits)
        for case, room_bytes in zip(
            cases, (capacity_bytes - each for each in (outside[1], outside[0], outside[2])), strict=True
        )
    )
    found = sorted((likely, low, high))
    return Interval(found[0] + outside.low_bytes, likely + outside.likely_bytes, found[2] + outside.high_bytes)


def _needed(cases: tuple[_Case, _Case, _Case], within: _Played, room_bytes: int) -> int:
    """Least room in which nothing fails, to `NEED_PRECISION`; on the same side of `room_bytes` as the verdict."""
    case, low, _ = cases
    too_small, enough = low.with_room.peak_allocated_bytes - 1, case.with_room.peak_reserved_bytes
    if within.fits:
        # It would do the same in no more than what it came to hold.
        enough = within.peak_reserved_bytes
    else:
        too_small = max(too_small, room_bytes)
    while enough - too_small > max(SEGMENT_BYTES, int(enough * NEED_PRECISION)):
        middle = (enough + too_small) // 2
        played = case.within(middle)
        if played.fits:
            enough = played.peak_reserved_bytes
        else:
            too_small = middle
    return enough


def _outside(machine: Machine) -> Interval:
    least, most = machine.outside_range_bytes
    likely = machine.outside_bytes
    return Interval(least, likely, most) if most else Interval(likely, likely, likely)


def _interval(found: Sequence[int]) -> Interval:
    """The likely figure comes first. A larger workspace can lower the reserved peak: the ends are the extremes."""
    return Interval(min(found), found[0], max(found))


def _moment(trace: Trace, event: int) -> Moment:
    op = trace.events[event].op if event >= 0 else -1
    if op < 0:
        return Moment(step=0, phase="other", op=-1, op_name="", module="", op_of_step=0, ops_in_step=0)
    record = trace.ops[op]
    for number, step in enumerate(trace.steps, start=1):
        if step.first_op <= op < step.end_op:
            place = (op - step.first_op + 1, step.end_op - step.first_op)
            return Moment(number, record.phase, op, record.name, record.module, *place)
    before = op < trace.steps[0].first_op
    return Moment(0 if before else len(trace.steps) + 1, record.phase, op, record.name, record.module, 0, 0)


def _held(trace: Trace, event: int) -> list[int]:
    """Return the ids of the storages that are allocated directly after an event."""
    live: dict[int, None] = {}
    for _, storage, size_bytes in trace.events[: event + 1]:
        if size_bytes > 0:
            live[storage] = None
        else:
            live.pop(storage, None)
    return list(live)


def _categories(trace: Trace, held: Sequence[int]) -> tuple[tuple[Category, int], ...]:
    total: dict[Category, int] = {}
    for storage in held:
        what = trace.storages[storage]
        total[what.category] = total.get(what.category, 0) + what.size_bytes
    return tuple(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))
