"""flow: keep, swap and recompute as a mixed-integer program in which a link moves bytes as a pipe moves water.

Computes: which of the swaps on offer to make, and a lower bound of the time that any plan made of them needs.
Reference: ours; of the kind of Beaumont, Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and
Offloading for Training DNNs" (NeurIPS 2021). Optimal: for the pipe. Ignores: that a storage moves whole, and which of
two copies goes first. Cost: a program of O(options + marks) columns and rows.

Note: [Why the pipe is a lower bound]
Take any plan of these options that the simulator plays, and let x be the swaps whose copies are made. At each *mark*,
a tick at which the program looks at the step, read off the play: q, how long compute had waited or run recipes since
the mark before; o, bytes written so far; b, bytes brought back when the ops up to the next tick have run. These
numbers meet every row below. A lane moves at most its rate times the time that went by, which is the ops' and q (out,
back). What was not saved cannot have been written (saved), and what is read must have arrived (read). A byte that is
not on the device was dropped to be recomputed or was written (room), and is idle (idle); one that came back, even in
part, counts. A storage that was dropped is made by the op that made it, which takes its time again, as do ops before
it whose results are gone, once for all that they serve (makers, in pipe_recomputes.py; Note: [What any recipe runs]).
So the least sum of q that meets the rows is no more than this plan takes longer than its ops. That holds for any
choice of marks, as rows are only left out; and leaving out that x is whole gives the relaxation, whose cost is no more
still. The price per byte that breaks ties is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from elbowroom.planners.optimal.pipe_recomputes import Recomputes, inputs_there, once, taken_time
from elbowroom.planners.optimal.solver import INFINITE, Model, Reals
from elbowroom.step.last_step import Flags, Ints, LastStep

TIE_SHARE = 1e-5
"""What moving every byte costs, as a share of the step: moves that are free still have a price."""
UNITS = 1000.0
"""The step and the keep-all peak count so many units in the program: near 1, as a solver's tolerances want it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swaps:
    """Swaps on offer. One array entry each.

    Attributes:
        n: the save; several entries may offer one save, back at different times.
        size: its bytes.
        saved: index of the tick from which it may be written.
        begin: slot from which it is idle.
        read: index of the tick at which it must have arrived; the number of ticks where it never comes back.
        end: slot from which it counts on the device again at the latest, or is freed.
    """

    n: Ints
    size: Ints
    saved: Ints
    begin: Ints
    read: Ints
    end: Ints


def swaps_on_offer(step: LastStep, n: Ints, early: Sequence[tuple[int, int]] = ()) -> Swaps:
    """Saves `n` as options, each back when the step reads it, and pairs (save, position) back before others read it."""
    first = np.array(early, np.int64).reshape(-1, 2)
    every, back = np.append(n, first[:, 0]), np.append(step.first_read[n], first[:, 1])
    begin, end = step.window(every, back)
    read = np.searchsorted(step.ticks, back)
    return Swaps(
        n=every,
        size=step.size[every],
        saved=np.searchsorted(step.ticks, step.saved_at[every]).astype(np.int64),
        begin=step.slots(begin),
        read=np.where(step.returns[every], read, len(step.ticks)).astype(np.int64),
        end=step.slots(end),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """Where the program looks at the step.

    Attributes:
        tick: per mark, index of a tick; ascending.
        at_ns: per mark, nominal time of the tick.
        until_ns: per mark, nominal time of the next tick of the step.
        mark: per slot looked at, the mark of the tick it follows.
        slot: the slots looked at, ascending.
        level: per slot looked at, bytes held when everything is kept.
        before: whether each look is before the op at its tick, where recomputes run, and not during the slot.
        first_ns: nominal time of the step's first tick: nothing moves before.
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
    """Choose marks: the ticks before slots over the budget, those between which much is saved or read, and recomputes.

    Args:
        step: the last step.
        swaps: what is on offer.
        budget_bytes: what the device may hold.
        most: marks of each kind at most.
        recomputes: what is on offer.
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
        first_ns=int(at_ns[0]),
        tick=marks,
        at_ns=at_ns[marks],
        until_ns=at_ns[marks + 1],
        mark=np.searchsorted(marks, ticks[order]).astype(np.int64),
        slot=slots[order],
        level=level[order],
        before=before[order],
    )


def _thinned(slot: Ints, tick: Ints, height: Ints, most: int) -> tuple[Ints, Ints]:
    """Of more than `most` slots, the highest of each of `most` equal stretches."""
    if len(slot) <= most:
        return slot, tick
    stretch = np.arange(len(slot)) * most // len(slot)
    order = np.lexsort((-height[slot], stretch))
    kept = np.sort(order[np.unique(stretch[order], return_index=True)[1]])
    return slot[kept], tick[kept]


def _quantiles(step: LastStep, swaps: Swaps, most: int) -> Ints:
    """Indices of ticks between which equal shares of the bytes on offer are saved or read."""
    traffic = np.zeros(len(step.ticks) + 1, np.int64)
    np.add.at(traffic, swaps.saved, swaps.size)
    np.add.at(traffic, swaps.read, swaps.size)
    total = np.cumsum(traffic[:-1])
    shares = np.arange(1, most + 1, dtype=np.int64) * int(total[-1]) // most
    return np.searchsorted(total, shares).astype(np.int64)


def _over(step: LastStep, budget_bytes: int) -> tuple[Ints, Ints]:
    """Slots over the budget that are higher than all before them after the same tick, and the index of that tick.

    The others need not be looked at: what is idle only grows until the next tick.
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
    """A link: bytes per nanosecond each way, at most."""

    out: float
    back: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipeChoice:
    """What the program chose.

    Attributes:
        swapped: per swap on offer, from 0 (keep) to 1 (swap).
        recomputed: per recompute on offer, from 0 to 1.
        bound_ns: how much longer than the ops the step takes at least, in any plan of these options.
        found: whether it met the rows at all.
    """

    swapped: Reals
    recomputed: Reals
    bound_ns: float
    found: bool


NOTHING_SAVED = PipeChoice(swapped=np.zeros(0), recomputed=np.zeros(0), bound_ns=0.0, found=False)
"""What there is to choose where autograd saves nothing, so that there are no ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to try.

    Attributes:
        kind: "bound" solves the relaxation alone, "dive" rounds its recomputes, "tree" searches.
        seconds: for each time a program is solved.
        gap_ns: a tree is searched until values and bound are so close.
        nodes: a tree has at most so many nodes.
        share: of the recomputes still open, how many a dive rounds up at a time.
    """

    kind: Literal["bound", "dive", "tree"]
    seconds: float
    gap_ns: float = 0.0
    nodes: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """All that the program is given. `budget_bytes` is what the device may hold."""

    step: LastStep
    swaps: Swaps
    recomputes: Recomputes
    marks: Marks
    pipe: Pipe
    budget_bytes: int

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
        x: per swap, 1 where it is made.
        y: per recompute, 1 where it is made.
        q: per mark, waits and recomputes since the mark before.
        o: per mark, bytes written when compute goes on.
        b: per mark, bytes brought back when the ops up to the next tick have run.
    """

    x: Ints
    y: Ints
    q: Ints
    o: Ints
    b: Ints


def choose(offer: Offer, effort: Effort) -> PipeChoice:
    """Solve the program."""
    model, count = Model(), len(offer.marks.tick)
    price = TIE_SHARE * UNITS / max(1.0, float(offer.size.sum()))
    at = Columns(
        x=model.columns(len(offer.size), cost=price * offer.size, upper=1.0, integer=True),
        y=model.columns(len(offer.recomputes.tick), upper=1.0, integer=True),
        q=model.columns(count, cost=1.0),
        o=model.columns(count),
        b=model.columns(count),
    )
    _lanes(model, offer, at)
    _room(model, offer, at)
    once(model, offer.swaps.n, at.x, offer.recomputes, at.y)
    taken_time(model, offer.marks.tick, at.q, offer.recomputes, at.y, offer.step, offer.ns)
    inputs_there(model, offer.swaps.n, offer.swaps.read, at.x, offer.recomputes, at.y)
    if effort.kind == "tree":
        answer = model.solve(effort.gap_ns * offer.ns, effort.seconds, effort.nodes)
    else:
        answer = (
            model.dive(effort.seconds, at.y, effort.share) if effort.kind == "dive" else model.relax(effort.seconds)
        )
    bound_ns = max(0.0, answer.bound - TIE_SHARE * UNITS) / offer.ns
    found = len(answer.values) > 0
    values = answer.values if found else np.zeros(model.column_count)
    return PipeChoice(swapped=values[at.x], recomputed=values[at.y], bound_ns=bound_ns, found=found)


def _sums(model: Model, x: Ints, size: Reals, at: Ints, count: int) -> Ints:
    """Columns for running sums: entry k is the sum of size * x over those with `at` <= k."""
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
    """What the two lanes of the link can have moved by each mark."""
    marks, swaps, count = offer.marks, offer.swaps, len(at.q)
    out, back = offer.pipe.out * offer.byte / offer.ns, offer.pipe.back * offer.byte / offer.ns
    k = np.arange(count, dtype=np.int64)
    first_ns = np.array([marks.first_ns], np.int64)
    before_ns, done_ns = np.append(first_ns, marks.at_ns[:-1]), np.append(first_ns, marks.until_ns[:-1])
    # S and R: per mark, bytes swapped that are saved by then, and that are read by then.
    saved = _sums(model, at.x, offer.size, np.searchsorted(marks.tick, swaps.saved), count)
    read = _sums(model, at.x, offer.size, np.searchsorted(marks.tick, swaps.read), count)
    # out: what was written since the mark before took its time, the ops' and the waits'.
    passed = (marks.at_ns - before_ns).astype(np.float64) * offer.ns
    model.rows(count, (k, at.o, 1.0), (k[1:], at.o[:-1], -1.0), (k, at.q, -out), least=-INFINITE, most=out * passed)
    # order: what was written stays written, and what came back stays.
    model.rows(count - 1, (k[:-1], at.o[1:], 1.0), (k[:-1], at.o[:-1], -1.0), least=0.0, most=INFINITE)
    model.rows(count - 1, (k[:-1], at.b[1:], 1.0), (k[:-1], at.b[:-1], -1.0), least=0.0, most=INFINITE)
    # saved: only what was saved and is swapped can have been written.
    model.rows(count, (k, at.o, 1.0), (k, saved, -1.0), least=-INFINITE, most=0.0)
    # back: what came back since the ops after the mark before took the waits and the ops after this mark.
    passed = (marks.until_ns - done_ns).astype(np.float64) * offer.ns
    model.rows(count, (k, at.b, 1.0), (k[1:], at.b[:-1], -1.0), (k, at.q, -back), least=-INFINITE, most=back * passed)
    # read: what is read at this mark has come back by then.
    passed = (marks.at_ns - done_ns).astype(np.float64) * offer.ns
    model.rows(count, (k, read, 1.0), (k[1:], at.b[:-1], -1.0), (k, at.q, -back), least=-INFINITE, most=back * passed)
    model.rows(count, (k, at.b, 1.0), (k, read, -1.0), least=0.0, most=INFINITE)
    # written: nothing comes back that was not written.
    model.rows(count, (k, at.b, 1.0), (k, at.o, -1.0), least=-INFINITE, most=0.0)


def _room(model: Model, offer: Offer, at: Columns) -> None:
    """The device holds no more than the budget wherever the program looks."""
    marks, swaps, recomputes, size = offer.marks, offer.swaps, offer.recomputes, offer.size
    count = len(marks.slot)
    j = np.arange(count, dtype=np.int64)
    lost = swaps.read == len(offer.step.ticks)
    # I and N: per look, bytes swapped that are idle by then, and those of them that never return and are freed.
    idle = _sums(model, at.x, size, np.searchsorted(marks.slot, swaps.begin), count)
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
