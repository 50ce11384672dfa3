"""Lanes: when each copy of a set of moves runs, and where compute waits for it.

A discrete-event walk over what is due at the ticks; see Note: [Ticks] in schedule.py for what happens at one, and
lane_queues.py for the lanes.

Note: [Steady state]
The step is one of an endless row of equal steps. Copies in flight at its end occupy the lanes when the next one starts.
A storage that is away across the end comes back in the next step. So the step is played until the lanes end as they
began, at most MOST_ROUNDS times. The last round is the result.

Gradients that clipping reads while they are away come back for it, and leave again: see handed_gradients.py. Compute
waits for these copies, which take no lane.

Ignored: copies take memory bandwidth and cores from compute; time between ops.
Cost: linear in the moves, plus sorting them, times the rounds; one round if the lanes are idle at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elbowroom.machine import Link, Machine, TierName
from elbowroom.simulate.lane_queues import BACK as COPY_BACK
from elbowroom.simulate.lane_queues import OUT, LaneUse, Links
from elbowroom.simulate.lane_queues import READ as DISK_READ
from elbowroom.simulate.lane_queues import WRITE as DISK_WRITE
from elbowroom.step.last_step import Flags, Ints, LastStep, listed
from elbowroom.step.moves import Moves, in_order_of_need, is_away, need, waits
from elbowroom.step.routes import route_to, staging_bytes
from elbowroom.units import NONE

LATE = np.iinfo(np.int64).max


class Stall(NamedTuple):
    """Compute waits before the op at a position until a move (its index) has ended.

    With `for_write` it waits for room; without, for data.
    """

    position: int
    move: int
    start_ns: int
    end_ns: int
    for_write: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Play:
    """When the moves of a plan happen. Arrays are per move; a copy that is not made starts and ends at NONE.

    Attributes:
        step_ns: when the step ends.
        stalls: in order of time.
        out_start_ns: start of each copy off the device that is requested in this step.
        out_end_ns: its end.
        back_start_ns: start of each swap back; with two copies, the start of the first.
        given_up: whether the storage was wanted back, or freed, before it had left.
        carried_end_ns: for a move that is away when the step starts, when it had left; below 0 before the step.
        position_ns: per position, when compute goes on there, after its stalls.
        room_ns: per position, when the waits for writes are over there, so that swaps back may start.
        run_ns: per rebuild, when its recipe starts; its ops run one after the other.
        copies: uses of the lanes that start in this step.
        staged: (time, bytes): storages on their way to or from the disk arrive on the host (> 0) or leave it (< 0).
    """

    step_ns: int
    stalls: tuple[Stall, ...]
    out_start_ns: Ints
    out_end_ns: Ints
    back_start_ns: Ints
    given_up: Flags
    carried_end_ns: Ints
    position_ns: Ints
    room_ns: Ints
    run_ns: Ints
    copies: tuple[LaneUse, ...]
    staged: tuple[tuple[int, int], ...]


def copy_ns(link: Link, size: Ints) -> tuple[Ints, Ints]:
    """Return the lane time of copies of `size` bytes, out and back: the latency plus size over rate, rounded up."""
    out, back = link.out_bytes_per_s // link.shared_by or 1, link.back_bytes_per_s // link.shared_by or 1
    return link.latency_ns + _over(size, out), link.latency_ns + _over(size, back)


def _over(size: Ints, rate: int) -> Ints:
    return np.ceil(size.astype(np.float64) * (1e9 / rate)).astype(np.int64)


# What can be due at a position, in the order of Note: [Ticks]; recipes run before the reads that need them.
QUEUE, GIVE_UP, WAIT, BACK, RUN, READ, HAND = range(7)

MOST_ROUNDS = 8


def play(step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName]) -> Play:
    """Run the moves of a checked plan against the clock.

    Args:
        step: the last step of a trace.
        moves: in write order.
        machine: gives the links, and the room of the host for storages that go on to the disk.
        tiers: per move, where it goes.
    """
    handed, at = _handed(step, moves)
    walk = _Walk(step, moves, _links(step, moves, machine, tiers), handed)
    positions, kinds, which = _agenda(step, moves, at)
    due = list(zip(*map(listed, (positions, kinds, which, step.nominal_ns(positions))), strict=True))
    state = walk.state()
    for _ in range(MOST_ROUNDS):
        walk.begin()
        for position, kind, move, at_ns in due:
            walk.do(position, kind, move, at_ns)
        walk.end()
        before, state = state, walk.state()
        if state == before:
            break
    return walk.result()


def _links(step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName]) -> Links:
    """Make the lanes of a machine for some moves."""
    count = len(moves.n)
    lane_ns, staged = [[0] * count for _ in range(4)], [0] * count
    for tier in sorted(set(tiers)):
        route = route_to(machine, tier)
        first, last = (list(map(listed, copy_ns(link, moves.size))) for link in (route[0], route[-1]))
        for i in (i for i, name in enumerate(tiers) if name == tier):
            lane_ns[OUT][i], lane_ns[COPY_BACK][i] = first[0][i], first[1][i]
            if len(route) > 1:
                lane_ns[DISK_WRITE][i], lane_ns[DISK_READ][i] = last[0][i], last[1][i]
                staged[i] = int(moves.size[i])
    return Links(lane_ns, staged, staging_bytes(step, moves, machine, tiers))


def _handed(step: LastStep, moves: Moves) -> tuple[list[tuple[int, bool]], Ints]:
    """Return the moves whose storages come back for an op while they are away, and the positions of these ops.

    With each move it is said whether the op writes to the storage, which is then copied out again.
    """
    found, at = list[tuple[int, bool]](), list[int]()
    if not step.handed:
        return found, np.zeros(0, np.int64)
    begin, end = map(listed, step.window(moves.n, moves.back))
    moves_of_storage: dict[int, list[int]] = {}
    for i, storage in enumerate(listed(step.storage_of(moves.n))):
        moves_of_storage.setdefault(storage, []).append(i)
    for part in step.handed:
        point, written = int(step.point_of[part.first_op - step.first_op]), step.trace.ops[part.first_op].writes
        for storage in part.storages:
            away = (i for i in moves_of_storage.get(storage, ()) if is_away(point, begin[i], end[i]))
            for i in away:
                found.append((i, storage in written))
                at.append(part.first_op)
    return found, np.array(at, np.int64)


def _agenda(step: LastStep, moves: Moves, handed: Ints) -> tuple[Ints, Ints, Ints]:
    """Return all that is due, in order: positions, kinds, and moves (for WAIT the number of writes).

    `handed` has the positions at which storages come back for an op: there it returns their numbers.
    """
    needed, every = need(step, moves), np.arange(len(moves.n), dtype=np.int64)
    waiting = waits(step, moves, needed, int(needed.max()))
    gone = step.freed[moves.n]
    returns, dropped = every[step.returns[moves.n]], every[~step.returns[moves.n] & (gone < len(step.level))]
    parts = (
        (QUEUE, every, step.saved_at[moves.n]),
        (GIVE_UP, returns, moves.back[returns]),
        (GIVE_UP, dropped, _freed_at(step, moves, dropped)),
        (WAIT, np.array(list(waiting.values()), np.int64), np.array(list(waiting), np.int64)),
        (BACK, returns, moves.back[returns]),
        (RUN, np.arange(len(moves.rebuilds)), np.array([r.position for r in moves.rebuilds], np.int64)),
        (READ, returns, step.first_read[moves.n[returns]]),
        (HAND, np.arange(len(handed)), handed),
    )
    kinds = np.concatenate([np.full(len(which), kind, np.int64) for kind, which, _ in parts])
    which = np.concatenate([which for _, which, _ in parts])
    positions = np.concatenate([position for _, _, position in parts])
    rank = np.zeros(len(every) + 1, np.int64)
    rank[in_order_of_need(step, moves)] = every
    # Writes are queued and recipes run in their own order; the rest goes in the order of need.
    own = (kinds == QUEUE) | (kinds == RUN) | (kinds == HAND)
    first = np.where(own, which, rank[np.clip(which, 0, len(every))])
    order = np.lexsort((first, kinds, positions))
    return positions[order], kinds[order], which[order]


def _freed_at(step: LastStep, moves: Moves, which: Ints) -> Ints:
    """Return the positions at which storages of moves are freed that are not used again."""
    points = listed(step.freed[moves.n[which]])
    after = np.array([step.op_at(point) + 1 for point in points], np.int64)
    return np.where(moves.n[which] < len(step.saves), after, step.first_read[moves.n[which]])


class _Walk:
    """State of the walks over the agenda. Times go on from round to round; results count from the start of the last."""

    def __init__(self, step: LastStep, moves: Moves, links: Links, handed: list[tuple[int, bool]]) -> None:
        self.step, self.links, self.handed = step, links, handed
        self.returns = step.returns[moves.n].tolist()
        self.carried: dict[int, None] = dict.fromkeys(np.nonzero(moves.wraps)[0].tolist())
        in_next_step = step.returns[moves.n] & (step.first_read[moves.n] < moves.back)
        self.early = np.nonzero(in_next_step)[0].tolist()
        self.count = len(moves.n)
        self.rebuilds = moves.rebuilds
        self.recipe_ns = [step.time_of(rebuild.recipe) for rebuild in moves.rebuilds]
        self.move_of = {storage: i for i, storage in enumerate(listed(step.storage_of(moves.n)))}
        self.back_asked = [False] * self.count
        self.end_ns = 0
        for i in self.carried:
            links.times[OUT][i] = (-1, -1)
            links.times[DISK_WRITE][i] = (-1, -1) if links.staged_bytes[i] else None

    def begin(self) -> None:
        """Start a round where the last one ended."""
        self.start_ns, self.late_ns = self.end_ns, 0
        self.given_up = [False] * self.count
        self.carried_end = [0] * self.count
        self.back_times: list[tuple[int, int] | None] = [None] * self.count
        self.requeued: set[int] = set()
        self.run_ns = [0] * len(self.rebuilds)
        self.stalls: list[Stall] = []
        self.runs: list[tuple[int, int]] = []
        self.waited_for = -self.count if self.carried else 0
        self.links.log.clear()

    def do(self, position: int, kind: int, i: int, at_ns: int) -> None:
        """Do one thing at a position, whose nominal time is at_ns."""
        now = self.start_ns + at_ns + self.late_ns
        if kind == QUEUE:
            self.requeued.add(i)
            self.back_asked[i] = False
            self.links.queue(i, now)
        elif kind == GIVE_UP:
            self.give_up(i, now)
        elif kind == WAIT:
            self.wait_for_room(position, i, now)
        elif kind == BACK and not self.given_up[i]:
            self.back_asked[i] = True
            self.links.back(i, now)
        elif kind == RUN:
            self.run(position, i, now)
        elif kind == READ:
            self.wait_for_data(position, i, now)
        elif kind == HAND:
            self.hand(position, i, now)

    def give_up(self, i: int, now: int) -> None:
        self.given_up[i] = self.links.give_up(i, now, wanted=self.returns[i])
        left = self.links.times[OUT][i]
        if i in self.carried:
            self.carried_end[i] = LATE if self.given_up[i] or left is None else left[1] - self.start_ns

    def run(self, position: int, r: int, now: int) -> None:
        """Run a recipe, after waiting for the storages that it reads."""
        inputs = (self.move_of.get(storage) for storage in self.rebuilds[r].inputs)
        for i in (i for i in inputs if i is not None):
            now = self.wait_for_data(position, i, now)
        self.run_ns[r] = now - self.start_ns
        self.runs.append((position, self.recipe_ns[r]))
        self.late_ns += self.recipe_ns[r]

    def hand(self, position: int, number: int, now: int) -> None:
        """Wait while a storage comes back for an op, and leaves again if the op has changed it."""
        i, written = self.handed[number]
        lanes = (DISK_READ, COPY_BACK, *((OUT, DISK_WRITE) if written else ()))
        copies_ns = sum(self.links.lane_ns[lane][i] for lane in lanes)
        self.stall(position, i, now, now + copies_ns, for_write=False)

    def wait_for_data(self, position: int, i: int, now: int) -> int:
        """Wait until a storage is back, if it was requested."""
        if not self.back_asked[i]:
            return now
        until = self.links.returned_ns(i)
        first = self.links.times[DISK_READ][i] or self.links.times[COPY_BACK][i]
        self.back_times[i] = first and (first[0] - self.start_ns, until - self.start_ns)
        return self.stall(position, i, now, until, for_write=False)

    def wait_for_room(self, position: int, writes_done: int, now: int) -> None:
        """Wait until the first `writes_done` writes of this step have ended.

        Below 0 it counts the writes of the step before: -1 is all of them but the last.
        """
        for g in range(self.waited_for, writes_done):
            i = g if g >= 0 else g + self.count
            if g >= 0 or (i in self.carried and i not in self.requeued):
                until = self.links.left_ns(i)
                now = now if until is None else self.stall(position, i, now, until, for_write=True)
        self.waited_for = max(self.waited_for, writes_done)

    def stall(self, position: int, i: int, now: int, until: int, *, for_write: bool) -> int:
        """Wait from now until a time, if that is later; return the later one."""
        if until > now:
            self.stalls.append(Stall(position, i, now - self.start_ns, until - self.start_ns, for_write))
            self.late_ns += until - now
        return max(now, until)

    def end(self) -> None:
        """End a round: start all copies that can start before the end of the step."""
        self.end_ns = self.start_ns + int(self.step.at_ns[-1]) + self.late_ns
        self.links.advance(self.end_ns)

    def state(self) -> tuple[object, ...]:
        """Return everything that the next round depends on."""
        links, now = self.links, self.end_ns
        queues = tuple(tuple((move, max(0, at - now)) for at, move in links.live(lane)) for lane in range(3))
        out = tuple(max(0, times[1] - now) if (times := links.times[OUT][i]) else LATE for i in self.carried)
        back = tuple(max(0, times[1] - now) if (times := links.times[COPY_BACK][i]) else LATE for i in self.early)
        asked = tuple(self.back_asked[i] for i in self.early)
        ready = tuple((max(0, at - now), move) for at, _, move in sorted(links.ready))
        releases = tuple((max(0, at - now), size) for at, size in sorted(links.releases) if at > now)
        free = tuple(max(0, at - now) for at in (*links.free_ns, links.held_at_ns))
        return queues, out, back, asked, ready, releases, free

    def result(self) -> Play:
        """Return what the last round did, with times from its start."""
        step, links = self.step, self.links
        late, late_for_room = np.zeros_like(step.at_ns), np.zeros_like(step.at_ns)
        for stall in self.stalls:
            late[stall.position - step.first_op] += stall.end_ns - stall.start_ns
            late_for_room[stall.position - step.first_op] += (stall.end_ns - stall.start_ns) * stall.for_write
        for position, recipe_ns in self.runs:
            late[position - step.first_op] += recipe_ns
        position_ns = step.at_ns + np.cumsum(late)
        out = [times and (times[0] - self.start_ns, times[1] - self.start_ns) for times in links.times[OUT]]
        return Play(
            step_ns=self.end_ns - self.start_ns,
            stalls=tuple(self.stalls),
            out_start_ns=_starts(out),
            out_end_ns=np.array([NONE if each is None else each[1] for each in out], np.int64),
            back_start_ns=_starts(self.back_times),
            given_up=np.array(self.given_up, np.bool_),
            carried_end_ns=np.array(self.carried_end, np.int64),
            position_ns=position_ns,
            room_ns=position_ns - late + late_for_room,
            run_ns=np.array(self.run_ns, np.int64),
            copies=tuple(
                LaneUse(copy.lane, copy.move, copy.start_ns - self.start_ns, copy.end_ns - self.start_ns)
                for copy in links.log
            ),
            staged=tuple((at - self.start_ns, size) for at, size in sorted(links.staged)),
        )


def moved_bytes(moves: Moves, done: Play) -> int:
    """Count the bytes that the copies of a step move, out and back."""
    out, back = done.out_start_ns != NONE, done.back_start_ns != NONE
    return int(moves.size[out].sum() + moves.size[back].sum())


def _starts(times: Sequence[tuple[int, int] | None]) -> Ints:
    """Return when each copy starts; NONE for a copy that is not made."""
    return np.array([NONE if each is None else each[0] for each in times], np.int64)
