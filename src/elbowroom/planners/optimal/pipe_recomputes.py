"""flow_recomputes: recomputes as columns and rows of the pipe program (pipe.py).

Computes: nothing by itself. Two kinds are offered to the program. *Options* are recipes that can be carried out, each
with its time and the bytes that it holds while it runs. Choosing among them gives a plan. *Makers* are the least that
any recipe needs: the op that made a dropped storage makes it again. They give a bound for all recipes.
Reference: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (MLSys 2020), for
a program with a variable per op that runs again. Here recipes are closed, so one variable per recipe is enough.
Optimal: as pipe.py. Ignores: for options, that one may read what another rebuilds at the same time. For makers, that a
recipe's inputs may be away too, and the bytes that it holds meanwhile.
Cost: a column per recipe, a row per storage and per input.

Note: [What any recipe runs]
A recipe allocates what the events of its ops allocate. So to rebuild a storage it runs the op that made it, and all ops
that wrote it since, such as relu_. What an op of the recipe writes, the recipe makes. What it reads must be on the
device as it was, or the recipe makes it too. A recipe for a storage runs after the storage is idle. What the step has
freed or overwritten by then is gone in every plan. So the ops that wrote it before that read run too, and so on: these
are the rules of step/recipes/rules.py. A storage for which one of these ops may not run again is not on offer. The
program counts the time of these ops once for all storages whose recipes run them. Any plan spends at least that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elbowroom.planners.optimal.solver import INFINITE, Model
from elbowroom.step.last_step import Ints, LastStep, listed, why_kept
from elbowroom.step.recipes import RecomputeOption
from elbowroom.step.recipes.history import History, history


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recomputes:
    """Recomputes on offer.

    Attributes:
        tick: per recompute, index of the tick before which it runs.
        duration_ns: per recompute, its time.
        extra: per recompute, bytes that it holds while it runs beyond those that it leaves.
        which: per dropped storage, its recompute.
        n: per dropped storage, its save.
        begin: per dropped storage, slot from which it is idle.
        end: per dropped storage, slot from which it is on the device again.
        needs: pairs (recompute, save) of inputs that must be on the device.
        makers: for makers, pairs (recompute, op that has to run again); else empty.
    """

    tick: Ints
    duration_ns: Ints
    extra: Ints
    which: Ints
    n: Ints
    begin: Ints
    end: Ints
    needs: tuple[Ints, Ints]
    makers: tuple[Ints, Ints]


def options_on_offer(step: LastStep, options: Sequence[RecomputeOption]) -> Recomputes:
    """Return recipes that can be carried out, as recomputes on offer."""
    save_of = {save.storage: n for n, save in enumerate(step.saves)}
    pairs = [(r, save_of[s]) for r, option in enumerate(options) for s in option.recompute.storages]
    inputs = [(r, save_of[s]) for r, option in enumerate(options) for s in option.inputs if s in save_of]
    which, n = _columns(pairs)
    before = np.array([option.recompute.before_op for option in options], np.int64)
    tick, begin, end = _windows(step, which, n, before)
    return Recomputes(
        tick=tick,
        which=which,
        n=n,
        begin=begin,
        end=end,
        duration_ns=np.array([option.duration_ns for option in options], np.int64),
        extra=np.array([option.peak_bytes - option.saved_bytes for option in options], np.int64),
        needs=_columns(inputs),
        makers=_columns([]),
    )


def makers_on_offer(step: LastStep, min_size_bytes: int) -> Recomputes:
    """Return every storage that some recipe might rebuild, with the ops that any such recipe runs."""
    known = history(step)
    large = np.nonzero((step.size >= max(1, min_size_bytes)) & step.returns & (step.used_op == step.end_op))[0]
    large = listed(large[large < len(step.saves)])
    droppable = [n for n in large if why_kept(step, n) is None]
    runs = {n: _made_again(known, step.saves[n].storage, int(step.idle_from[n])) for n in droppable}
    offered = [n for n in droppable if runs[n]]
    n = np.array(offered, np.int64)
    pairs = [(r, op) for r, each in enumerate(offered) for op in runs[each]]
    every = np.arange(len(n), dtype=np.int64)
    none = np.zeros(0, np.int64)
    nothing = np.zeros(len(n), np.int64)
    tick, begin, end = _windows(step, every, n, step.first_read[n])
    return Recomputes(
        tick=tick,
        which=every,
        n=n,
        begin=begin,
        end=end,
        duration_ns=nothing,
        extra=nothing,
        needs=(none, none),
        makers=_columns(pairs),
    )


def _made_again(known: History, storage: int, position: int) -> list[int]:
    """Return ops of any recipe for a storage that is idle from a position; none if there is no such recipe.

    See Note: [What any recipe runs].
    """
    found, left, met = set[int](), [(storage, position)], set[tuple[int, int]]()
    while left:
        made, before = left.pop()
        if made not in known.maker:
            return []
        if (made, before) in met:
            continue
        met.add((made, before))
        for op in {known.maker[made], *known.writers_before(made, before)} - found:
            if known.refused[op - known.first_op]:
                return []
            found.add(op)
            read, written = known.reads[op - known.first_op], known.writes[op - known.first_op]
            left += [(each, op) for each in read if not _is_there(known, each, op, position)]
            left += [(each, op) for each in written]
    return sorted(found)


def _is_there(known: History, storage: int, op: int, position: int) -> bool:
    """Whether what an op has read is on the device before `position`, as it was then, if every storage is kept."""
    return known.alive(storage, position) and known.written(storage, op, position) is None


def _windows(step: LastStep, which: Ints, n: Ints, before: Ints) -> tuple[Ints, Ints, Ints]:
    """Return per recompute its tick, and per storage that it drops the first and the last slot without it."""
    begin, end = step.window(n, before[which])
    return np.searchsorted(step.ticks, before).astype(np.int64), step.slots(begin), step.slots(end)


def _columns(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return first, second


def once(model: Model, swapped: Ints, x: Ints, recomputes: Recomputes, y: Ints) -> None:
    """Add rows: a storage is swapped in one of the ways on offer, or dropped by one recompute, or kept."""
    saves, row = np.unique(np.concatenate([swapped, recomputes.n]), return_inverse=True)
    columns = np.concatenate([x, y[recomputes.which]])
    model.rows(len(saves), (row.astype(np.int64), columns, 1.0), least=0.0, most=1.0)


def taken_time(model: Model, marks: Ints, q: Ints, recomputes: Recomputes, y: Ints, step: LastStep, ns: float) -> None:
    """Add rows: the waits at the marks include the time of recomputes, as the links move bytes meanwhile."""
    which, op = recomputes.makers
    if not len(op):
        # The recomputes that run since the mark before take their time.
        k = np.arange(len(q), dtype=np.int64)
        mark = np.minimum(np.searchsorted(marks, recomputes.tick), len(q) - 1).astype(np.int64)
        taken = recomputes.duration_ns.astype(np.float64) * ns
        model.rows(len(q), (k, q, 1.0), (mark, y, -taken), least=0.0, most=INFINITE)
        return
    # Every op that has to run again takes its time, somewhere.
    ops, z_of = np.unique(op, return_inverse=True)
    z = model.columns(len(ops), upper=1.0)
    row = np.arange(len(op), dtype=np.int64)
    model.rows(len(op), (row, z[z_of], 1.0), (row, y[which], -1.0), least=0.0, most=INFINITE)
    taken = np.array([step.op_ns(each) for each in listed(ops)], np.float64) * ns
    zero = np.zeros(1, np.int64)
    model.rows(1, (zero.repeat(len(q)), q, 1.0), (zero.repeat(len(ops)), z, -taken), least=0.0, most=INFINITE)


def inputs_there(model: Model, swapped: Ints, read: Ints, x: Ints, recomputes: Recomputes, y: Ints) -> None:
    """Add rows: what a recompute reads is not swapped and back later, nor dropped and rebuilt later."""
    which, n = recomputes.needs
    if not len(which):
        return
    row, tick = np.arange(len(which), dtype=np.int64), recomputes.tick[which]
    moving, column = _pairs(n, swapped)
    back_later = read[column] > tick[moving]
    dropping, other = _pairs(n, recomputes.n)
    rebuilt_later = recomputes.tick[recomputes.which[other]] >= tick[dropping]
    model.rows(
        len(which),
        (row, y[which], 1.0),
        (moving[back_later], x[column[back_later]], 1.0),
        (dropping[rebuilt_later], y[recomputes.which[other[rebuilt_later]]], 1.0),
        least=0.0,
        most=1.0,
    )


def _pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of indices at which two arrays hold the same save."""
    order = np.argsort(right, kind="stable")
    first = np.searchsorted(right[order], left, side="left")
    count = np.searchsorted(right[order], left, side="right") - first
    rows = np.repeat(np.arange(len(left)), count)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return rows.astype(np.int64), order[np.repeat(first, count) + within].astype(np.int64)
