"""flow: keep, swap and recompute as a mixed-integer program in which a link moves bytes as a pipe moves water.

Computes: which of the swaps on offer to make, and a lower bound of the time that any plan made of them needs.
Reference: ours; of the kind of Beaumont, Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and
Offloading for Training DNNs" (NeurIPS 2021). Optimal: for the pipe. Ignores: that a storage moves whole, and which of
two copies goes first. Cost: a program of O(options + marks) columns and rows.

Note: [Why the pipe is a lower bound]
Take any plan of these options that the simulator plays, and let x be the swaps whose copies are made. A *mark* is a
tick at which the program looks at the step. At each mark, read three numbers off the play:

- q: how long compute has waited or run recipes since the mark before;
- o: bytes written so far;
- b: bytes brought back when the ops up to the next tick have run.

These numbers meet every row below. A lane moves at most its rate times the elapsed time, which is that of the ops and
q (out, back). What was not saved cannot have been written (saved). What is read must have arrived (read). A byte that
is not on the device was dropped to be recomputed or was written (room), and is idle (idle). A storage that came back
in part counts as on the device. A dropped storage is made again by its op, which takes its time again. So do earlier
ops whose results are gone, once for all that they serve (makers, in pipe_recomputes.py; Note: [What any recipe runs]).

So the least sum of q that meets the rows is at most the time by which this plan exceeds its ops. That holds for any
choice of marks, as fewer marks only leave rows out. The relaxation, in which x need not be whole, costs no more still.
The price per byte that breaks ties is subtracted.

Note: [Equal steps in the pipe]
Optimizer states are away across the end of the step, which is one of endless equal ones. What was written for them
in the step before is a column, and so is what came back. At the step's end as much is moved for the step after:
all copies of one step, and no more, are made in the time of one step. Before its first use such a state is idle from
the start on, and after its last one it is idle again. So the bound counts the copies of states like those of saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elbowroom.planners.optimal.pipe_recomputes import Recomputes, inputs_there, once, taken_time
from elbowroom.planners.optimal.solver import INFINITE, Model, Reals
from elbowroom.step.last_step import Flags, Ints, LastStep

TIE_SHARE = 1e-5
"""Price of moving every byte, as a share of the step: it breaks ties between moves that cost no time."""
UNITS = 1000.0
"""Units of the step and of the keep-all peak in the program, so that numbers suit the solver's tolerances."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swaps:
    """Swaps on offer, one array entry each.

    Attributes:
        n: the save; several entries may offer one save, back at different times.
        size: its bytes.
        saved: index of the tick from which it may be written.
        begin: slot from which it is idle.
        read: index of the tick at which it must have arrived; the number of ticks if it never comes back.
        end: the last possible slot from which it counts as on the device again, or is freed.
        states: how many of them, the last ones, are of states.
        again: indices of those that are away across the step's end. They may be written, and are idle, from the step's
            start on, and once more from `again_saved` and `again_begin` on.
        again_saved: per such swap, index of the tick from which it may be written for the next step.
        again_begin: per such swap, slot from which it is idle for the next step.
    """

    n: Ints
    size: Ints
    saved: Ints
    begin: Ints
    read: Ints
    end: Ints
    states: int
    again: Ints
    again_saved: Ints
    again_begin: Ints


def swaps_on_offer(
    step: LastStep, n: Ints, early: Sequence[tuple[int, int]] = (), states: Sequence[Ints] = ()
) -> Swaps:
    """Return swaps as options.

    Args:
        step: the last step.
        n: saves, each back at its read.
        early: pairs (save, position) of earlier returns.
        states: windows of optimizer states and gradients, back at their use; those of one entry count as one swap.
    """
    first, lead = np.array(early, np.int64).reshape(-1, 2), np.array([each[0] for each in states], np.int64)
    every = np.concatenate([n, first[:, 0], lead])
    back = np.concatenate([step.first_read[n], first[:, 1], step.first_read[lead]])
    size = np.append(step.size[every[: len(every) - len(lead)]], [int(step.size[each].sum()) for each in states])
    begin, end = step.window(every, back)
    begin, wraps = step.slots(begin), step.wraps(every, back)
    saved = np.searchsorted(step.ticks, step.saved_at[every]).astype(np.int64)
    return Swaps(
        n=every,
        size=size.astype(np.int64),
        saved=np.where(wraps, 0, saved),
        begin=np.where(wraps, 0, begin),
        read=np.where(step.returns[every], np.searchsorted(step.ticks, back), len(step.ticks)).astype(np.int64),
        end=step.slots(end),
        states=len(lead),
        again=np.nonzero(wraps)[0].astype(np.int64),
        again_saved=saved[wraps],
        again_begin=begin[wraps],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """Marks and slots at which the program looks at the step.

    Attributes:
        tick: per mark, index of a tick; ascending.
        at_ns: per mark, nominal time of the tick.
        until_ns: per mark, nominal time of the next tick of the step.
        mark: per slot looked at, the mark of the tick that it follows.
        slot: the slots looked at, ascending.
        level: per slot looked at, bytes held with everything kept.
        before: per look, whether it is before the op at its tick, when recomputes run, or during the slot.
        first_ns: nominal time of the step's first tick, before which no save moves; 0 if other storages may move.
    """

    first_ns: int
    tick: Ints
    at_ns: Ints
    until_ns: Ints
    mark: Ints
    slot: Ints
    level: Ints
    before: Flags


def marks_of(step: LastStep, swaps: Swaps, budget_bytes: int, most: int, recomputes: Recomputes) -> Marks:
    """Choose marks: ticks before slots over the budget, ticks between which much is saved or read, and recomputes.

    Args:
        step: the last step.
        swaps: the swaps on offer.
        budget_bytes: what the device may hold.
        most: the most marks of each kind.
        recomputes: the recomputes on offer.
    """
    slot, tick = _thinned(*_over(step, budget_bytes), step.slot_peak, most)
    run = np.unique(recomputes.tick[recomputes.extra > 0])
    run_slot, run = _thinned(step.slots(step.points(step.ticks[run])), run, step.slot_peak, most)
    slots, ticks = np.concatenate([slot, run_slot]), np.concatenate([tick, run])
    level = np.concatenate([step.slot_peak[slot], step.level[step.points(step.ticks[run])]])
    before = np.arange(len(slots)) >= len(slot)
    order = np.lexsort((before, slots))
    marks = np.unique(np.concatenate([ticks, _quantiles(step, swaps, most), [len(step.ticks) - 1]])).astype(np.int64)
    at_ns = np.append(step.nominal_ns(step.ticks), step.at_ns[-1])
    return Marks(
        first_ns=0 if len(swaps.again) else int(at_ns[0]),
        tick=marks,
        at_ns=at_ns[marks],
        until_ns=at_ns[marks + 1],
        mark=np.searchsorted(marks, ticks[order]).astype(np.int64),
        slot=slots[order],
        level=level[order],
        before=before[order],
    )


def _thinned(slot: Ints, tick: Ints, height: Ints, most: int) -> tuple[Ints, Ints]:
    """Reduce the slots to at most `most`: the highest of each of `most` equal stretches."""
    if len(slot) <= most:
        return slot, tick
    stretch = np.arange(len(slot)) * most // len(slot)
    order = np.lexsort((-height[slot], stretch))
    kept = np.sort(order[np.unique(stretch[order], return_index=True)[1]])
    return slot[kept], tick[kept]


def _quantiles(step: LastStep, swaps: Swaps, most: int) -> Ints:
    """Return indices of ticks between which equal shares of the bytes on offer are saved or read."""
    traffic = np.zeros(len(step.ticks) + 1, np.int64)
    np.add.at(traffic, swaps.saved, swaps.size)
    np.add.at(traffic, swaps.read, swaps.size)
    total = np.cumsum(traffic[:-1])
    shares = np.arange(1, most + 1, dtype=np.int64) * int(total[-1]) // most
    return np.searchsorted(total, shares).astype(np.int64)


def _over(step: LastStep, budget_bytes: int) -> tuple[Ints, Ints]:
    """Return slots over the budget that are higher than all earlier ones after the same tick, with that tick's index.

    The others need no look: idle bytes only grow until the next tick.
    """
    slot = np.nonzero(step.slot_peak > budget_bytes)[0].astype(np.int64)
    tick = np.searchsorted(step.slots(step.points(step.ticks)), slot, side="right").astype(np.int64) - 1
    slot, tick = slot[tick >= 0], tick[tick >= 0]
    record = np.ones(len(slot), np.bool_)
    highest, last = 0, -1
    for i, (k, height) in enumerate(zip(tick.tolist(), step.slot_peak[slot].tolist(), strict=True)):
        highest = 0 if k != last else highest
        record[i], highest, last = height > highest, max(highest, height), k
    return slot[record], tick[record]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipe:
    """Link with its most bytes per nanosecond each way."""

    out: float
    back: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipeChoice:
    """Choice of the program.

    Attributes:
        swapped: per swap of a save on offer, from 0 (keep) to 1 (swap).
        states: per group of states on offer, from 0 to 1.
        recomputed: per recompute on offer, from 0 to 1.
        bound_ns: lower bound on the time beyond the ops, in any plan of these options.
        found: whether any values meet the rows.
    """

    swapped: Reals
    states: Reals
    recomputed: Reals
    bound_ns: float
    found: bool


NOTHING_SAVED = PipeChoice(swapped=np.zeros(0), states=np.zeros(0), recomputed=np.zeros(0), bound_ns=0.0, found=False)
"""Choice for a step in which autograd saves nothing, so that there are no ticks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """Input of the program.

    `budget_bytes` is what the device may hold. If states are `decided`, their swaps are made in any case.
    """

    step: LastStep
    swaps: Swaps
    recomputes: Recomputes
    marks: Marks
    pipe: Pipe
    budget_bytes: int
    decided: bool = False

    @property
    def byte(self) -> float:
        """One byte, in units of the program."""
        return UNITS / max(1, int(self.step.level.max()))

    @property
    def ns(self) -> float:
        """One nanosecond, in units of the program."""
        return UNITS / max(1, int(self.step.at_ns[-1]))

    @property
    def size(self) -> Reals:
        """Per swap, its bytes in units of the program."""
        return self.swaps.size.astype(np.float64) * self.byte


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Columns of the program.

    Attributes:
        x: per swap, 1 if it is made.
        y: per recompute, 1 if it is made.
        q: per mark, time of waits and recomputes since the mark before.
        o: per mark, bytes written when compute goes on.
        b: per mark, bytes brought back when the ops up to the next tick have run.
    """

    x: Ints
    y: Ints
    q: Ints
    o: Ints
    b: Ints


def choose(offer: Offer, seconds: float) -> PipeChoice:
    """Solve the relaxation of the program, in at most a number of seconds."""
    model, count = Model(), len(offer.marks.tick)
    price = TIE_SHARE * UNITS / max(1.0, float(offer.size.sum()))
    at = Columns(
        x=model.columns(len(offer.size), cost=price * offer.size, upper=1.0),
        y=model.columns(len(offer.recomputes.tick), upper=1.0),
        q=model.columns(count, cost=1.0),
        o=model.columns(count),
        b=model.columns(count),
    )
    saves, states = np.split(at.x, [len(at.x) - offer.swaps.states])
    if offer.decided:
        model.rows(len(states), (np.arange(len(states), dtype=np.int64), states, 1.0), least=1.0, most=1.0)
    _lanes(model, offer, at)
    _room(model, offer, at)
    once(model, offer.swaps.n, at.x, offer.recomputes, at.y)
    taken_time(model, offer.marks.tick, at.q, offer.recomputes, at.y, offer.step, offer.ns)
    inputs_there(model, offer.swaps.n, offer.swaps.read, at.x, offer.recomputes, at.y)
    answer = model.solve(seconds)
    bound_ns = max(0.0, answer.bound - TIE_SHARE * UNITS) / offer.ns
    found = len(answer.values) > 0
    values = answer.values if found else np.zeros(model.column_count)
    return PipeChoice(
        swapped=values[saves], states=values[states], recomputed=values[at.y], bound_ns=bound_ns, found=found
    )


def _sums(model: Model, x: Ints, size: Reals, at: Ints, count: int) -> Ints:
    """Add columns for running sums: entry k is the sum of size * x over those with `at` <= k."""
    total = model.columns(count)
    k, inside = np.arange(count, dtype=np.int64), at < count
    model.rows(
        count,
        (k, total, 1.0),
        (k[1:], total[:-1], -1.0),
        (at[inside], x[inside], -size[inside]),
        least=0.0,
        most=0.0,
    )
    return total


def _lanes(model: Model, offer: Offer, at: Columns) -> None:
    """Add rows on what the two lanes of the link can have moved by each mark."""
    marks, swaps, count, size = offer.marks, offer.swaps, len(at.q), offer.size
    k = np.arange(count, dtype=np.int64)
    first_ns = np.array([marks.first_ns], np.int64)
    before_ns, done_ns = np.append(first_ns, marks.at_ns[:-1]), np.append(first_ns, marks.until_ns[:-1])
    out, back = _lanes_across(model, offer, at)
    # S and R: per mark, bytes swapped that are saved by then, and that are read by then.
    column, twice = np.append(at.x, at.x[swaps.again]), np.append(size, size[swaps.again])
    saved_at = np.searchsorted(marks.tick, np.append(swaps.saved, swaps.again_saved))
    saved = _sums(model, column, twice, saved_at, count)
    read = _sums(model, at.x, size, np.searchsorted(marks.tick, swaps.read), count)
    # out: what was written since the mark before took its time, the ops' and the waits'.
    _in_time(model, offer, out, at.o, at.q, marks.at_ns - before_ns)
    # order: what was written stays written, and what came back stays.
    model.rows(count - 1, (k[:-1], at.o[1:], 1.0), (k[:-1], at.o[:-1], -1.0), least=0.0, most=INFINITE)
    model.rows(count - 1, (k[:-1], at.b[1:], 1.0), (k[:-1], at.b[:-1], -1.0), least=0.0, most=INFINITE)
    # saved: only what was saved and is swapped can have been written.
    model.rows(count, (k, at.o, 1.0), (k, saved, -1.0), least=-INFINITE, most=0.0)
    # back: what came back since the ops after the mark before took the waits and the ops after this mark.
    _in_time(model, offer, back, at.b, at.q, marks.until_ns - done_ns)
    # read: what is read at this mark has come back by then.
    _in_time(model, offer, back, read, at.q, marks.at_ns - done_ns)
    model.rows(count, (k, at.b, 1.0), (k, read, -1.0), least=0.0, most=INFINITE)
    # written: nothing comes back that was not written.
    model.rows(count, (k, at.b, 1.0), (k, at.o, -1.0), least=-INFINITE, most=0.0)


class _Lane(NamedTuple):
    """Lane of the link: bytes per unit of time, bytes moved by each mark, and those moved in the step before."""

    rate: float
    moved: Ints
    before: Ints


def _in_time(model: Model, offer: Offer, lane: _Lane, moved: Ints, q: Ints, passed_ns: Ints) -> None:
    """Add rows: what has moved by each mark beyond that by the mark before took at most the time that passed."""
    k, passed = np.arange(len(q), dtype=np.int64), passed_ns.astype(np.float64) * offer.ns
    earlier = ((k[1:], lane.moved[:-1], -1.0), (k[:1], lane.before, -1.0))
    model.rows(len(q), (k, moved, 1.0), *earlier, (k, q, -lane.rate), least=-INFINITE, most=lane.rate * passed)


def _lanes_across(model: Model, offer: Offer, at: Columns) -> tuple[_Lane, _Lane]:
    """Return the lanes, with rows across the end of the step: see Note: [Equal steps in the pipe]."""
    swaps, zero, returns = offer.swaps, np.zeros(1, np.int64), offer.swaps.read < len(offer.step.ticks)
    lanes = [
        _Lane(rate * offer.byte / offer.ns, moved, model.columns(1, upper=INFINITE if len(swaps.again) else 0.0))
        for rate, moved in ((offer.pipe.out, at.o), (offer.pipe.back, at.b))
    ]
    late = model.columns(1, cost=1.0)
    passed = float(offer.step.at_ns[-1] - offer.marks.at_ns[-1]) * offer.ns
    for lane, which in zip(lanes, (np.ones_like(returns), returns), strict=True) if len(swaps.again) else ():
        x, size, rate = at.x[which], offer.size[which], lane.rate
        moves = ((zero.repeat(len(x)), x, size), (zero, lane.before, 1.0), (zero, lane.moved[-1:], -1.0))
        model.rows(1, *moves, (zero, late, -rate), least=-INFINITE, most=rate * passed)
    return lanes[0], lanes[1]


def _room(model: Model, offer: Offer, at: Columns) -> None:
    """Add rows that keep the device within the budget wherever the program looks."""
    marks, swaps, recomputes, size = offer.marks, offer.swaps, offer.recomputes, offer.size
    count = len(marks.slot)
    j = np.arange(count, dtype=np.int64)
    lost = swaps.read == len(offer.step.ticks)
    # I and N: per look, bytes swapped that are idle by then, and those of them that never return and are freed.
    column, twice = np.append(at.x, at.x[swaps.again]), np.append(size, size[swaps.again])
    idle = _sums(model, column, twice, np.searchsorted(marks.slot, np.append(swaps.begin, swaps.again_begin)), count)
    freed = _sums(model, at.x[lost], size[lost], np.searchsorted(marks.slot, swaps.end[lost]), count)
    # D: per look, bytes that are dropped and not yet rebuilt.
    dropped_size = offer.step.size[recomputes.n].astype(np.float64) * offer.byte
    dropped = _sums(
        model,
        np.tile(at.y[recomputes.which], 2),
        np.concatenate([dropped_size, -dropped_size]),
        np.searchsorted(marks.slot, np.concatenate([recomputes.begin, recomputes.end])),
        count,
    )
    # H: what recomputes hold while they run, beyond what they leave, is held before their op.
    look = np.nonzero(marks.before)[0]
    held = np.minimum(np.searchsorted(marks.tick[marks.mark[look]], recomputes.tick), max(0, len(look) - 1))
    runs = np.nonzero(marks.tick[marks.mark[look]][held] == recomputes.tick)[0] if len(look) else look
    extra = (
        look[held[runs]] if len(look) else look,
        at.y[runs],
        -recomputes.extra[runs].astype(np.float64) * offer.byte,
    )
    back = marks.mark[j]
    over = (marks.level - offer.budget_bytes).astype(np.float64) * offer.byte
    gone = ((j, dropped, 1.0), (j, at.b[back], -1.0), (j, freed, -1.0), extra)
    # room: what is over the budget has been dropped or written, and has not come back or been freed.
    model.rows(count, (j, at.o[back], 1.0), *gone, least=over, most=INFINITE)
    # idle: what is over the budget has been dropped or is idle, whether written or not.
    model.rows(count, (j, idle, 1.0), *gone, least=over, most=INFINITE)
