"""flow: keep, swap and recompute as a mixed-integer program in which a link moves bytes as a pipe moves water.

Computes: which of the swaps on offer to make, and a lower bound of the time that any plan made of them needs.
Reference: ours; of the kind of Beaumont, Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and
Offloading for Training DNNs" (NeurIPS 2021). Optimal: for the pipe. Ignores: that a storage moves whole, and which of
two copies goes first. Cost: a program of O(options + marks) columns and rows.

Note: [Why the pipe is a lower bound]
Take any plan of these options that the simulator plays, and let x be the swaps whose copies are made. At each *mark*,
a tick at which the program looks at the step, read off the play: q, how long compute had waited since the mark
before; o, bytes written so far; b, bytes brought back when the ops up to the next tick have run. These numbers meet
every row below. A lane moves at most its rate times the time that went by, which is the ops' and the waits' (out,
back). What was not saved cannot have been written (saved), and what is read must have arrived (read). A byte that is
not on the device was written (room), and is idle (idle); one that came back, even in part, counts. So the least sum of
q that meets the rows is no more than what this plan waits. That holds for any choice of marks, as rows are only left
out; and leaving out that x is whole gives the relaxation, whose cost is no more still. The price per byte that breaks
ties is taken off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elbowroom.lifetimes import Ints, LastStep
from elbowroom.planners.milp import Model, Reals, Solution

TIE_SHARE = 1e-5
"""What moving every byte costs, as a share of the step: moves that are free still have a price."""
UNITS = 1000.0
"""The step and the keep-all peak count so many units in the program: near 1, as a solver's tolerances want it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swaps:
    """Swaps on offer. One array entry each.

    Attributes:
        n: the save.
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


def swaps_on_offer(step: LastStep, n: Ints) -> Swaps:
    """Saves `n` as options."""
    begin, end = step.window(n, step.first_read[n])
    read = np.searchsorted(step.ticks, step.first_read[n])
    return Swaps(
        n=n,
        size=step.size[n],
        saved=np.searchsorted(step.ticks, step.saved_at[n]).astype(np.int64),
        begin=step.slots(begin),
        read=np.where(step.returns[n], read, len(step.ticks)).astype(np.int64),
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
        first_ns: nominal time of the step's first tick: nothing moves before.
    """

    first_ns: int
    tick: Ints
    at_ns: Ints
    until_ns: Ints
    mark: Ints
    slot: Ints


def marks_of(step: LastStep, swaps: Swaps, budget_bytes: int, most: int) -> Marks:
    """Choose marks: the ticks before slots over the budget, and those between which much is saved or read.

    Args:
        step: the last step.
        swaps: what is on offer.
        budget_bytes: what the device may hold.
        most: marks of either kind at most.
    """
    slot, tick = _over(step, budget_bytes)
    if len(slot) > most:
        # The highest slot of each of `most` equal stretches.
        stretch = np.arange(len(slot)) * most // len(slot)
        order = np.lexsort((-step.slot_peak[slot], stretch))
        kept = np.sort(order[np.unique(stretch[order], return_index=True)[1]])
        slot, tick = slot[kept], tick[kept]
    traffic = np.zeros(len(step.ticks) + 1, np.int64)
    np.add.at(traffic, swaps.saved, swaps.size)
    np.add.at(traffic, swaps.read, swaps.size)
    total = np.cumsum(traffic[:-1])
    shares = np.arange(1, most + 1, dtype=np.int64) * int(total[-1]) // most
    quantiles = np.searchsorted(total, shares).astype(np.int64)
    last = np.array([len(step.ticks) - 1], np.int64)
    marks = np.unique(np.concatenate([tick, quantiles, last]))
    at_ns = np.append(step.nominal_ns(step.ticks), step.at_ns[-1])
    mark = np.searchsorted(marks, tick).astype(np.int64)
    first_ns = int(at_ns[0])
    return Marks(first_ns=first_ns, tick=marks, at_ns=at_ns[marks], until_ns=at_ns[marks + 1], mark=mark, slot=slot)


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
class Choice:
    """What the program chose.

    Attributes:
        swapped: per swap on offer, from 0 (keep) to 1 (swap).
        stall_ns: what it thinks compute waits.
        bound_ns: what compute waits at least, in any plan of these options.
        found: whether it met the rows at all.
    """

    swapped: Reals
    stall_ns: float
    bound_ns: float
    found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long the solver may take: absolute gap in ns, seconds, nodes of the tree (0: the relaxation)."""

    gap_ns: float
    seconds: float
    nodes: int


def choose(step: LastStep, swaps: Swaps, marks: Marks, pipe: Pipe, budget_bytes: int, effort: Effort) -> Choice:
    """Solve the program.

    Columns: x per swap, 1 where it is made; per mark q (waits since the mark before), o (bytes written when compute
    goes on), b (bytes brought back when the ops up to the next tick have run), and the sums S (bytes swapped that are
    saved by then) and R (bytes swapped that are read by then); per slot looked at I (bytes swapped that are idle by
    then) and N (bytes swapped that never return and are freed by then).
    """
    byte, ns = UNITS / max(1, int(step.level.max())), UNITS / max(1, int(step.at_ns[-1]))
    size, count = swaps.size.astype(np.float64) * byte, len(marks.tick)
    model = Model()
    price = TIE_SHARE * UNITS / max(1.0, float(size.sum()))
    x = model.columns(len(size), cost=price * size, upper=1.0, integer=True)
    q = model.columns(count, cost=1.0)
    o, b = model.columns(count), model.columns(count)
    saved = _sums(model, x, size, np.searchsorted(marks.tick, swaps.saved), count)
    read = _sums(model, x, size, np.searchsorted(marks.tick, swaps.read), count)
    _lanes(model, marks, (q, o, b, saved, read), (pipe.out * byte / ns, pipe.back * byte / ns), ns)
    _room(model, step, swaps, marks, (x, o, b), byte, budget_bytes)
    answer = model.solve(effort.gap_ns * ns, effort.seconds, effort.nodes)
    return _choice(answer, x, q, ns)


def _choice(answer: Solution, x: Ints, q: Ints, ns: float) -> Choice:
    bound = max(0.0, answer.bound - TIE_SHARE * UNITS) / ns
    if not len(answer.values):
        return Choice(swapped=np.zeros(len(x)), stall_ns=0.0, bound_ns=bound, found=False)
    stall = float(answer.values[q].sum()) / ns
    return Choice(swapped=answer.values[x], stall_ns=stall, bound_ns=bound, found=True)


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


def _lanes(model: Model, marks: Marks, columns: tuple[Ints, ...], rates: tuple[float, float], ns: float) -> None:
    """What the two lanes of the link can have moved by each mark."""
    q, o, b, saved, read = columns
    out, back = rates
    count = len(q)
    k, infinite = np.arange(count, dtype=np.int64), float("inf")
    first_ns = np.array([marks.first_ns], np.int64)
    before_ns, done_ns = np.append(first_ns, marks.at_ns[:-1]), np.append(first_ns, marks.until_ns[:-1])
    # out: what was written since the mark before took its time, the ops' and the waits'.
    passed = (marks.at_ns - before_ns).astype(np.float64) * ns
    model.rows(count, (k, o, 1.0), (k[1:], o[:-1], -1.0), (k, q, -out), least=-infinite, most=out * passed)
    # order: what was written stays written, and what came back stays.
    model.rows(count - 1, (k[:-1], o[1:], 1.0), (k[:-1], o[:-1], -1.0), least=0.0, most=infinite)
    model.rows(count - 1, (k[:-1], b[1:], 1.0), (k[:-1], b[:-1], -1.0), least=0.0, most=infinite)
    # saved: only what was saved and is swapped can have been written.
    model.rows(count, (k, o, 1.0), (k, saved, -1.0), least=-infinite, most=0.0)
    # back: what came back since the ops after the mark before took the waits and the ops after this mark.
    passed = (marks.until_ns - done_ns).astype(np.float64) * ns
    model.rows(count, (k, b, 1.0), (k[1:], b[:-1], -1.0), (k, q, -back), least=-infinite, most=back * passed)
    # read: what is read at this mark has come back by then.
    passed = (marks.at_ns - done_ns).astype(np.float64) * ns
    model.rows(count, (k, read, 1.0), (k[1:], b[:-1], -1.0), (k, q, -back), least=-infinite, most=back * passed)
    model.rows(count, (k, b, 1.0), (k, read, -1.0), least=0.0, most=infinite)
    # written: nothing comes back that was not written.
    model.rows(count, (k, b, 1.0), (k, o, -1.0), least=-infinite, most=0.0)


def _room(
    model: Model,
    step: LastStep,
    swaps: Swaps,
    marks: Marks,
    columns: tuple[Ints, Ints, Ints],
    byte: float,
    budget_bytes: int,
) -> None:
    """The device holds no more than the budget in the slots looked at."""
    x, o, b = columns
    size, count = swaps.size.astype(np.float64) * byte, len(marks.slot)
    j = np.arange(count, dtype=np.int64)
    lost = swaps.read == len(step.ticks)
    idle = _sums(model, x, size, np.searchsorted(marks.slot, swaps.begin), count)
    freed = _sums(model, x[lost], size[lost], np.searchsorted(marks.slot, swaps.end[lost]), count)
    over = (step.slot_peak[marks.slot] - budget_bytes).astype(np.float64) * byte
    infinite = float("inf")
    # room: what is over the budget has been written, and has not come back or been freed.
    model.rows(count, (j, o[marks.mark], 1.0), (j, b[marks.mark], -1.0), (j, freed, -1.0), least=over, most=infinite)
    # idle: what is over the budget is idle, whether written or not.
    model.rows(count, (j, idle, 1.0), (j, b[marks.mark], -1.0), (j, freed, -1.0), least=over, most=infinite)
