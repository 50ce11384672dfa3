"""Schedule: a plan compiled into what the runtime does at each tick, with a peak that does not depend on timing.

Note: [Ticks]
The runtime gets control only when autograd saves a storage for the first time and when one is read back. At a tick
it does, in this order: queue the write of a swapped storage that was just saved; give up the unfinished writes of
`Action.back` (those storages simply stay); wait until `Action.writes_done` of the plan's writes, counted in write
order and among those queued so far, have ended, been given up or lost their storage; start the swaps back of
`Action.back`; on a read, wait until the storage is there. Several ticks at one position all carry that position's
action, as their order is not known beforehand; doing it twice changes nothing.

Note: [Waits that do not depend on timing]
need[j] is what slot j holds when every swapped storage is away in its window; the peak P* is its maximum. A write
that has not ended leaves its storage on the device, so before the ops up to the next tick the runtime must know that
need[j] + (idle storages whose writes may be unfinished) <= P* for each of their slots j. Writes end in the order they
were queued, so one number per tick is enough: how many must have ended if none of the later ones has. It follows from
the plan alone. Slow links cost time, never bytes: the allocated peak is P* on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elbowroom.lifetimes import Ints, LastStep
from elbowroom.machine import TierName
from elbowroom.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the runtime does at a tick before it goes on.

    Attributes:
        writes_done: how many of the plan's writes must have ended, in write order.
        back: the saves whose swap back starts here, in the order of need.
    """

    writes_done: int
    back: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A plan in terms of the n-th saved storage of a step.

    Attributes:
        trace_id: the trace it belongs to.
        budget_bytes: the plan's.
        peak_allocated_bytes: what the step will hold at most, on any machine (P* above).
        swapped: the saves that are swapped, in write order.
        tiers: where each of `swapped` goes.
        on_save: by save: what to do when it is saved; where nothing, no entry.
        on_read: by (save, k): what to do when it is read back for the k-th time, from 0; where nothing, no entry.
        saved: per save of the step, (size_bytes, dtype): what the run must find.
        reads: per save of the step, how often it is read back.
    """

    trace_id: str
    budget_bytes: int
    peak_allocated_bytes: int
    swapped: tuple[int, ...]
    tiers: tuple[TierName, ...]
    on_save: dict[int, Action]
    on_read: dict[tuple[int, int], Action]
    saved: tuple[tuple[int, str], ...]
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """The swaps of a plan as arrays, in write order.

    Attributes:
        n: the save.
        back: position before which it is back.
        size: bytes.
        begin: first slot of the window in which it is away.
        end: one past the last slot of that window.
    """

    n: Ints
    back: Ints
    size: Ints
    begin: Ints
    end: Ints


def moves_of(step: LastStep, n: Ints, back: Ints) -> Moves:
    """Swap saves `n`, each back before the position at the same index of `back`."""
    order = np.argsort(n)
    n, back = n[order], back[order]
    begin, end = step.window(n, back)
    return Moves(n=n, back=back, size=step.size[n], begin=step.slots(begin), end=step.slots(end))


def moves_of_plan(step: LastStep, plan: Plan) -> Moves:
    """The moves of a plan that has passed `check`."""
    save_of = {save.storage: n for n, save in enumerate(step.saves)}
    n = np.array([save_of[swap.storage] for swap in plan.swaps], dtype=np.int64)
    return moves_of(step, n, np.array([swap.back_before_op for swap in plan.swaps], dtype=np.int64))


def tiers_of_plan(step: LastStep, plan: Plan, moves: Moves) -> tuple[TierName, ...]:
    """Per move of a plan, where it goes."""
    tier_of = {swap.storage: swap.tier for swap in plan.swaps}
    return tuple(tier_of[step.saves[n].storage] for n in moves.n.tolist())


def need(step: LastStep, moves: Moves) -> Ints:
    """Allocated bytes at most per slot, every swapped storage counted as away in its window."""
    change = np.zeros(len(step.borders) + 1, np.int64)
    np.add.at(change, moves.begin, moves.size)
    np.subtract.at(change, moves.end, moves.size)
    return step.slot_peak - np.cumsum(change[:-1])


def waits(step: LastStep, moves: Moves, needed: Ints, limit_bytes: int) -> dict[int, int]:
    """By position of a tick: how many writes must have ended there; only where it is more than before.

    See Note: [Waits that do not depend on timing]. Cost: linear in the slots over the limit and in the moves.
    """
    # Where even the keep-all level is within the limit, nothing needs to have left.
    tight = np.nonzero(step.slot_peak > limit_bytes)[0]
    tick_of = np.searchsorted(step.slots(step.points(step.ticks)), tight, side="right") - 1
    entering, leaving = np.argsort(moves.begin, kind="stable").tolist(), np.argsort(moves.end, kind="stable").tolist()
    begin, end, size = moves.begin.tolist(), moves.end.tolist(), moves.size.tolist()
    room = (limit_bytes - needed[tight]).tolist()
    done, pending, entered, left = 0, 0, 0, 0
    found: dict[int, int] = {}
    for slot, tick, free in zip(tight.tolist(), tick_of.tolist(), room, strict=True):
        while entered < len(begin) and begin[entering[entered]] <= slot:
            pending += size[entering[entered]] if entering[entered] >= done else 0
            entered += 1
        while left < len(end) and end[leaving[left]] <= slot:
            pending -= size[leaving[left]] if leaving[left] >= done else 0
            left += 1
        while pending > free:
            pending -= size[done] if begin[done] <= slot < end[done] else 0
            done += 1
            found[int(step.ticks[tick])] = done
    return found


def in_order_of_need(step: LastStep, moves: Moves) -> list[int]:
    """Indices of the moves by their first read; of those read together, the last saved first."""
    return np.lexsort((-moves.n, step.first_read[moves.n])).tolist()


def actions(step: LastStep, moves: Moves, waiting: dict[int, int]) -> dict[int, Action]:
    """By position: what to do at its ticks. Swaps back that start together go in the order of need."""
    back: dict[int, list[int]] = {}
    for i in in_order_of_need(step, moves):
        if step.returns[moves.n[i]]:
            back.setdefault(int(moves.back[i]), []).append(int(moves.n[i]))
    places = sorted({*back, *waiting})
    return {p: Action(writes_done=waiting.get(p, 0), back=tuple(back.get(p, ()))) for p in places}


def schedule_of(step: LastStep, plan: Plan) -> Schedule:
    """Compile a plan that has passed `check` (which see) for the last step of its trace."""
    moves = moves_of_plan(step, plan)
    needed = need(step, moves)
    peak = int(needed.max())
    at = actions(step, moves, waits(step, moves, needed, peak))
    storages = [step.trace.storages[save.storage] for save in step.saves]
    return Schedule(
        trace_id=plan.trace_id,
        budget_bytes=plan.budget_bytes,
        peak_allocated_bytes=peak,
        swapped=tuple(moves.n.tolist()),
        tiers=tiers_of_plan(step, plan, moves),
        on_save={n: at[s.saved_at] for n, s in enumerate(step.saves) if s.saved_at in at},
        on_read={(n, k): at[p] for n, s in enumerate(step.saves) for k, p in enumerate(s.read_at) if p in at},
        saved=tuple((storage.size_bytes, storage.dtype) for storage in storages),
        reads=tuple(len(s.read_at) for s in step.saves),
    )
