"""Curves: what each tier holds over the time of one simulated step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from elbowroom.lanes import NEVER, Play
from elbowroom.lifetimes import SCRATCH, Ints, LastStep, allocated_at, listed
from elbowroom.machine import TierName
from elbowroom.moves import Moves
from elbowroom.rebuilds import Beat, Rebuild, beats, held_before
from elbowroom.timeline import Curve, CurveKind
from elbowroom.trace import Category


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heights:
    """Bytes on the device under a plan, allocated or reserved.

    Attributes:
        level: per point; at a position, once its recipes have run.
        before: per rebuild, when its recipe starts.
        beats: while the recipes run.
    """

    level: Ints
    before: list[int]
    beats: list[Beat]


def allocated(step: LastStep, moves: Moves, done: Play) -> Heights:
    """Allocated bytes on the device."""
    change = np.zeros(len(step.level) + 1, np.int64)
    begin, end = away_points(step, moves, done)
    np.add.at(change, begin, moves.size)
    np.subtract.at(change, end, moves.size)
    for rebuild in moves.rebuilds:
        np.add.at(change, rebuild.begin, step.size[rebuild.n])
        np.subtract.at(change, rebuild.end, step.size[rebuild.n])
    level = step.level - np.cumsum(change[:-1])
    before = held_before(step, moves.rebuilds, level)
    return Heights(level=level, before=before, beats=beats(step, moves.rebuilds, level))


def away_points(step: LastStep, moves: Moves, done: Play) -> tuple[Ints, Ints]:
    """Per move, points [begin, end) at which its bytes have left the device; empty where they never do."""
    begin, end = step.window(moves.n, moves.back)
    room_ns = np.append(done.room_ns[step.ticks - step.first_op], np.iinfo(np.int64).max)
    left_at = np.append(step.points(step.ticks), len(step.level))[np.searchsorted(room_ns, done.out_end_ns)]
    begin = np.maximum(begin, left_at)
    begin[done.given_up | (done.out_start_ns == NEVER)] = len(step.level)
    return np.minimum(begin, end), end


def device_curve(step: LastStep, moves: Moves, done: Play, heights: Heights, kind: CurveKind) -> Curve:
    """For each op its maximum, those that run again too, and where compute waits before it, what is held meanwhile."""
    level, place = heights.level, np.arange(len(step.at_ns))
    most = np.append(np.maximum.reduceat(level[: step.point_of[-1]], step.point_of[:-1]), level[-1])
    arrived_ns = step.at_ns + np.concatenate([[0], (done.position_ns - step.at_ns)[:-1]])
    waiting, then_ns = level[step.point_of], done.position_ns.copy()
    for rebuild, before, run_ns in reversed(list(zip(moves.rebuilds, heights.before, done.run_ns, strict=True))):
        waiting[rebuild.position - step.first_op] = before
        then_ns[rebuild.position - step.first_op] = run_ns
    # Per position: on arrival, before its waits for room; then with the swaps back that start; then while recipes run;
    # then during the op.
    running = _runs(step, moves, done, heights)
    parts = (
        (place, arrived_ns, level[np.maximum(step.point_of - 1, 0)], arrived_ns < done.room_ns),
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
    """Bytes on each lower tier, from the start of each write until its storage is freed or the write given up."""
    last_op = np.array([step.op_at(int(p)) for p in step.gone[step.storage_of(moves.n)]], np.int64) - step.first_op
    freed_ns = done.position_ns[last_op] + np.diff(step.at_ns)[last_op]
    until = np.where(done.given_up, done.out_end_ns, np.maximum(freed_ns, done.out_end_ns))
    curves: list[Curve] = []
    for tier in sorted(set(tiers)):
        on = np.array([name == tier for name in tiers]) & (done.out_start_ns != NEVER)
        times = np.concatenate([np.zeros(1, np.int64), done.out_start_ns[on], until[on]])
        change = np.concatenate([np.zeros(1, np.int64), moves.size[on], -moves.size[on]])
        at = np.unique(times)
        total = np.cumsum(np.bincount(np.searchsorted(at, times), weights=change)).astype(np.int64)
        curves.append(Curve(tier=tier, kind="allocated", at_ns=tuple(at.tolist()), size_bytes=tuple(total.tolist())))
    return curves


def at_peak(step: LastStep, moves: Moves, done: Play, heights: Heights) -> tuple[tuple[Category, int], ...]:
    """Bytes per category on the device at the allocated peak, largest first."""
    point, beat = int(heights.level.argmax()), max(heights.beats, key=lambda each: each.most, default=None)
    missing, running = set[int](), dict[int, int]()
    if beat is not None and beat.most > heights.level[point]:
        first = moves.rebuilds[beat.rebuild]
        point, running = int(step.point_of[first.position - step.first_op]), _running(first, beat.turn)
        same = [each for each in moves.rebuilds[beat.rebuild :] if each.position == first.position]
        missing.update(chain.from_iterable(step.storage_of(each.n).tolist() for each in same))
    elif step.scratch.get(op := step.op_at(point), (0, 0))[0] == point - step.point_of[op - step.first_op]:
        running.update({SCRATCH: step.scratch[op][1]} if op in step.scratch else {})
    windows = [(moves.n, *away_points(step, moves, done)), *((each.n, each.begin, each.end) for each in moves.rebuilds)]
    for n, begin, end in windows:
        missing.update(step.storage_of(n[(begin <= point) & (point < end)]).tolist())
    present = [storage for storage in listed(allocated_at(step, point)) if storage not in missing]
    held = [(storage, size) for storage in present if (size := int(step.storage_bytes[storage]))]
    total: dict[Category, int] = {}
    for storage, size_bytes in (*held, *running.items()):
        category: Category = "workspace" if storage == SCRATCH else step.trace.storages[storage].category
        total[category] = total.get(category, 0) + size_bytes
    return tuple(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))


def _running(rebuild: Rebuild, turn: int) -> dict[int, int]:
    """What a recipe has on the device when its op of a turn holds the most."""
    live = dict[int, int]()
    for change in (change for change in rebuild.changes if change.turn < turn):
        live[change.storage] = live.get(change.storage, 0) + change.size_bytes
    most = live.copy()
    for change in (change for change in rebuild.changes if change.turn == turn):
        live[change.storage] = live.get(change.storage, 0) + change.size_bytes
        most = live.copy() if sum(live.values()) > sum(most.values()) else most
    return {storage: size_bytes for storage, size_bytes in most.items() if size_bytes}
