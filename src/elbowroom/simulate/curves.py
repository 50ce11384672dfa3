"""Curves: what each tier holds over the time of one simulated step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from elbowroom.machine import TIERS, TierName
from elbowroom.simulate.lane_queues import WRITE
from elbowroom.simulate.lanes import Play
from elbowroom.step.last_step import Ints, LastStep, allocated_at, listed
from elbowroom.step.moves import Moves, each_once, ticks_of
from elbowroom.step.rebuilds import Beat, Rebuild, beats, held_before
from elbowroom.timeline import Curve, CurveKind
from elbowroom.trace import Category
from elbowroom.units import NONE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heights:
    """Bytes on the device under a plan, allocated or reserved.

    Attributes:
        level: bytes per point; at a position, those after its recipes have run.
        before: bytes per rebuild, when its recipe starts.
        beats: bytes while each op of a recipe runs.
    """

    level: Ints
    before: list[int]
    beats: list[Beat]


def allocated(step: LastStep, moves: Moves, done: Play) -> Heights:
    """Allocated bytes on the device."""
    change = np.zeros(len(step.level) + 1, np.int64)
    which, begin, end = away_points(step, moves, done)
    np.add.at(change, begin, moves.size[which])
    np.subtract.at(change, end, moves.size[which])
    for rebuild in moves.rebuilds:
        np.add.at(change, rebuild.begin, step.size[rebuild.n])
        np.subtract.at(change, rebuild.end, step.size[rebuild.n])
    level = step.level - np.cumsum(change[:-1])
    before = held_before(step, moves.rebuilds, level)
    return Heights(level=level, before=before, beats=beats(step, moves.rebuilds, level))


def away_points(step: LastStep, moves: Moves, done: Play) -> tuple[Ints, Ints, Ints]:
    """Return arrays (move, begin, end): the bytes of a move are off the device at points [begin, end).

    No range is empty. A move that is away across the end of the step has two ranges.
    """
    first, last = step.window(moves.n, moves.back)
    every, never = np.arange(len(moves.n), dtype=np.int64), len(step.level)
    ticks = ticks_of(step, moves)
    room_ns, tick_points = done.room_ns[ticks - step.first_op], np.append(step.points(ticks), never)
    left_at = np.maximum(first, tick_points[np.searchsorted(room_ns, done.out_end_ns)])
    left_at[(done.given_up & ~moves.wraps) | (done.out_start_ns == NONE)] = never
    carried_at = tick_points[np.searchsorted(room_ns, done.carried_end_ns)]
    carried_at[done.carried_end_ns <= 0] = 0
    which = np.concatenate([every, every[moves.wraps]])
    begin = np.concatenate([left_at, carried_at[moves.wraps]])
    end = np.concatenate([np.where(moves.wraps, never, last), last[moves.wraps]])
    some = begin < end
    return which[some], begin[some], end[some]


def device_curve(step: LastStep, moves: Moves, done: Play, heights: Heights, kind: CurveKind) -> Curve:
    """Return the device curve: the maximum during each op, first run or again, and the level while compute waits."""
    level, place = heights.level, np.arange(len(step.at_ns))
    most = np.append(np.maximum.reduceat(level[: step.point_of[-1]], step.point_of[:-1]), level[-1])
    arrived_ns = step.at_ns + np.concatenate([[0], (done.position_ns - step.at_ns)[:-1]])
    waiting, then_ns = level[step.point_of], done.position_ns.copy()
    for rebuild, before, run_ns in reversed(list(zip(moves.rebuilds, heights.before, done.run_ns, strict=True))):
        waiting[rebuild.position - step.first_op] = before
        then_ns[rebuild.position - step.first_op] = run_ns
    # Each position has four stages: on arrival, before its waits for room (the first position has the level at which
    # the step before ended); with the swaps back that start there; while recipes run; during the op.
    running = _runs(step, moves, done, heights)
    parts = (
        (place, arrived_ns, level[step.point_of - 1], arrived_ns < done.room_ns),
        (place, done.room_ns, waiting, done.room_ns < then_ns),
        (*running, running[0] >= 0),
        (place, done.position_ns, most, most >= 0),
    )
    places, times, sizes, shown = (np.concatenate(part) for part in zip(*parts, strict=True))
    stage = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    order = np.lexsort((stage, places))[shown[np.lexsort((stage, places))]]
    at, size = times[order], sizes[order]
    new = np.concatenate([[True], size[1:] != size[:-1]])
    return Curve(tier="device", kind=kind, at_ns=tuple(at[new].tolist()), size_bytes=tuple(size[new].tolist()))


def _runs(step: LastStep, moves: Moves, done: Play, heights: Heights) -> tuple[Ints, Ints, Ints]:
    """Place, time and bytes of each op that runs again, and of the end of each recipe."""
    places: list[int] = []
    times: list[int] = []
    sizes: list[int] = []
    of_beat = iter(heights.beats)
    for rebuild, start in zip(moves.rebuilds, done.run_ns.tolist(), strict=True):
        mine = [next(of_beat) for _ in rebuild.recipe]
        places += [rebuild.position - step.first_op] * (len(mine) + 1)
        times += accumulate((step.op_ns(op) for op in rebuild.recipe), initial=start)
        sizes += [*(beat.most for beat in mine), mine[-1].after]
    return np.array(places, np.int64), np.array(times, np.int64), np.array(sizes, np.int64)


def lower_curves(step: LastStep, moves: Moves, done: Play, tiers: Sequence[TierName]) -> list[Curve]:
    """Bytes on each lower tier over time.

    A storage counts from the start of its write until it is freed or the write is given up. What
    outlives the step has its place there all the time. The host also holds storages on their way to or from the disk.
    """
    last_op = np.array([step.op_at(int(p)) for p in step.gone[step.storage_of(moves.n)]], np.int64) - step.first_op
    freed_ns = done.position_ns[last_op] + np.diff(step.at_ns)[last_op]
    until = np.where(done.given_up, done.out_end_ns, np.maximum(freed_ns, done.out_end_ns))
    begun, always = done.out_start_ns.copy(), moves.n >= len(step.saves)
    staged = {copy.move for copy in done.copies if copy.lane == WRITE} if done.staged else set[int]()
    for copy in done.copies:
        if copy.lane == WRITE:
            begun[copy.move] = copy.start_ns
    begun[[i for i, tier in enumerate(tiers) if done.staged and tier == "disk" and i not in staged]] = NONE
    begun[always], until[always] = 0, done.step_ns
    curves: list[Curve] = []
    for tier in TIERS:
        if tier not in tiers and not (tier == "host" and done.staged):
            continue
        on = np.array([name == tier for name in tiers], np.bool_) & (begun != NONE)
        on[on] = each_once(step, moves.n[on])
        passing = np.array(done.staged if tier == "host" else (), np.int64).reshape(-1, 2)
        times = np.concatenate([np.zeros(1, np.int64), begun[on], until[on], np.maximum(passing[:, 0], 0)])
        change = np.concatenate([np.zeros(1, np.int64), moves.size[on], -moves.size[on], passing[:, 1]])
        at = np.unique(times)
        total = np.cumsum(np.bincount(np.searchsorted(at, times), weights=change)).astype(np.int64)
        curves.append(Curve(tier=tier, kind="allocated", at_ns=tuple(at.tolist()), size_bytes=tuple(total.tolist())))
    return curves


def at_peak(step: LastStep, moves: Moves, done: Play, heights: Heights) -> tuple[tuple[Category, int], ...]:
    """Bytes per category on the device at the allocated peak, largest first."""
    total: dict[Category, int] = {}
    for storage, size_bytes in held_at_peak(step, moves, done, heights):
        category: Category = "workspace" if storage == NONE else step.trace.storages[storage].category
        total[category] = total.get(category, 0) + size_bytes
    return tuple(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))


def held_at_peak(step: LastStep, moves: Moves, done: Play, heights: Heights) -> tuple[tuple[int, int], ...]:
    """(Storage, bytes) on the device at the allocated peak; `NONE` is a workspace that the trace has no storage for."""
    point, beat = int(heights.level.argmax()), max(heights.beats, key=lambda each: each.most, default=None)
    missing, running = set[int](), dict[int, int]()
    if beat is not None and beat.most > heights.level[point]:
        first = moves.rebuilds[beat.rebuild]
        point, running = int(step.point_of[first.position - step.first_op]), _running(first, beat.turn)
        same = [each for each in moves.rebuilds[beat.rebuild :] if each.position == first.position]
        missing.update(chain.from_iterable(step.storage_of(each.n).tolist() for each in same))
    elif step.scratch.get(op := step.op_at(point), (0, 0))[0] == point - step.point_of[op - step.first_op]:
        running.update({NONE: step.scratch[op][1]} if op in step.scratch else {})
    which, *points = away_points(step, moves, done)
    windows = [(moves.n[which], *points), *((each.n, each.begin, each.end) for each in moves.rebuilds)]
    for n, begin, end in windows:
        inside = (begin <= point) & (point < end)
        missing.update(listed(step.storage_away(n[inside], begin[inside])))
    present = [storage for storage in listed(allocated_at(step, point)) if storage not in missing]
    held = [(storage, size) for storage in present if (size := int(step.storage_bytes[storage]))]
    return (*held, *running.items())


def _running(rebuild: Rebuild, turn: int) -> dict[int, int]:
    """Bytes by storage that a recipe has on the device when its op at `turn` holds the most."""
    live = dict[int, int]()
    for change in (change for change in rebuild.changes if change.turn < turn):
        live[change.storage] = live.get(change.storage, 0) + change.size_bytes
    most = live.copy()
    for change in (change for change in rebuild.changes if change.turn == turn):
        live[change.storage] = live.get(change.storage, 0) + change.size_bytes
        most = live.copy() if sum(live.values()) > sum(most.values()) else most
    return {storage: size_bytes for storage, size_bytes in most.items() if size_bytes}
