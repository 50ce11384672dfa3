"""Lanes: when each copy of a set of moves runs, and where compute waits for it.

A discrete-event walk over what is due at the ticks; see Note: [Ticks] in schedule.py for what happens at
one. Each direction of each link is a lane that moves one whole storage at a time, in the order of its queue. A write
that was given up before it started is never made; one that had started occupies its lane until its end, for nothing.

What it ignores: that copies take memory bandwidth and cores from compute, and time between ops.
Cost: linear in the moves, plus sorting them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elbowroom.errors import UsageError
from elbowroom.lifetimes import Flags, Ints, LastStep, listed
from elbowroom.machine import Link, Machine, TierName
from elbowroom.moves import Moves, in_order_of_need, need, waits

NEVER = -1


class Stall(NamedTuple):
    """Compute waits before the op at a position, for a move (its index) to end.

    `for_write` tells a wait for room from a wait for data.
    """

    position: int
    move: int
    start_ns: int
    end_ns: int
    for_write: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Play:
    """When the moves of a plan happen. Arrays are per move; a copy that is not made starts and ends at NEVER.

    Attributes:
        step_ns: when the step ends.
        stalls: in order of time.
        out_start_ns: start of each write.
        out_end_ns: its end.
        back_start_ns: start of each swap back.
        back_end_ns: its end.
        given_up: the write was given up, or its storage freed, before it ended.
        position_ns: per position, when compute goes on there, after its stalls.
        room_ns: per position, when the waits for writes are over there, so that swaps back may start.
        run_ns: per rebuild, when its recipe starts; its ops run one after the other.
    """

    step_ns: int
    stalls: tuple[Stall, ...]
    out_start_ns: Ints
    out_end_ns: Ints
    back_start_ns: Ints
    back_end_ns: Ints
    given_up: Flags
    position_ns: Ints
    room_ns: Ints
    run_ns: Ints


def link_to(machine: Machine, tier: TierName) -> Link:
    """The link between the device and a tier."""
    for link in machine.links:
        if (link.upper, link.lower) == ("device", tier):
            return link
    known = ", ".join(f"{link.upper} to {link.lower}" for link in machine.links) or "none"
    raise UsageError(f"machine {machine.name!r} has no link from device to {tier}; its links: {known}")


def copy_ns(link: Link, size: Ints) -> tuple[Ints, Ints]:
    """Lane time of copies of `size` bytes out and back: the latency plus size over rate, rounded up."""
    out, back = link.out_bytes_per_s // link.shared_by or 1, link.back_bytes_per_s // link.shared_by or 1
    return link.latency_ns + _over(size, out), link.latency_ns + _over(size, back)


def _over(size: Ints, rate: int) -> Ints:
    return np.ceil(size.astype(np.float64) * (1e9 / rate)).astype(np.int64)


# What can be due at a position, in the order of Note: [Ticks]; recipes run before the reads that need them.
QUEUE, GIVE_UP, WAIT, BACK, RUN, READ = range(6)


def play(step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName]) -> Play:
    """Run the moves of a checked plan against the clock.

    Args:
        step: the last step of a trace.
        moves: in write order.
        machine: gives the links.
        tiers: per move, where it goes.
    """
    walk = _Walk(step, moves, machine, tiers)
    positions, kinds, which = _agenda(step, moves)
    columns = (positions, kinds, which, step.nominal_ns(positions))
    for position, kind, move, at_ns in zip(*map(listed, columns), strict=True):
        walk.do(position, kind, move, at_ns)
    return _result(step, walk)


def _agenda(step: LastStep, moves: Moves) -> tuple[Ints, Ints, Ints]:
    """Everything that is due, in order: positions, kinds, and moves (for WAIT the number of writes)."""
    needed, every = need(step, moves), np.arange(len(moves.n), dtype=np.int64)
    waiting = waits(step, moves, needed, int(needed.max()))
    gone = step.gone[step.storage_of(moves.n)]
    returns, dropped = every[step.returns[moves.n]], every[~step.returns[moves.n] & (gone < len(step.level))]
    parts = (
        (QUEUE, every, step.saved_at[moves.n]),
        (GIVE_UP, returns, moves.back[returns]),
        (GIVE_UP, dropped, np.array([step.op_at(point) + 1 for point in listed(gone[dropped])], np.int64)),
        (WAIT, np.array(list(waiting.values()), np.int64), np.array(list(waiting), np.int64)),
        (BACK, returns, moves.back[returns]),
        (RUN, np.arange(len(moves.rebuilds)), np.array([r.position for r in moves.rebuilds], np.int64)),
        (READ, returns, step.first_read[moves.n[returns]]),
    )
    kinds = np.concatenate([np.full(len(which), kind, np.int64) for kind, which, _ in parts])
    which = np.concatenate([which for _, which, _ in parts])
    positions = np.concatenate([position for _, _, position in parts])
    rank = np.zeros(len(every) + 1, np.int64)
    rank[in_order_of_need(step, moves)] = every
    # Writes are queued and recipes run in the order they have; everything else goes in the order of need.
    first = np.where((kinds == QUEUE) | (kinds == RUN), which, rank[np.minimum(which, len(every))])
    order = np.lexsort((first, kinds, positions))
    return positions[order], kinds[order], which[order]


class _Walk:
    """State of one walk over the agenda."""

    def __init__(self, step: LastStep, moves: Moves, machine: Machine, tiers: Sequence[TierName]) -> None:
        count = len(moves.n)
        self.rebuilds = moves.rebuilds
        self.recipe_ns = [step.time_of(rebuild.recipe) for rebuild in moves.rebuilds]
        self.move_of = {storage: i for i, storage in enumerate(listed(step.storage_of(moves.n)))}
        self.run_ns = [0] * len(moves.rebuilds)
        self.runs: list[tuple[int, int]] = []
        self.lane = list(tiers)
        self.out_ns, self.back_ns = [0] * count, [0] * count
        for tier in set(tiers):
            out, back = (lane.tolist() for lane in copy_ns(link_to(machine, tier), moves.size))
            for i in (i for i, name in enumerate(tiers) if name == tier):
                self.out_ns[i], self.back_ns[i] = out[i], back[i]
        self.queued: dict[TierName, deque[tuple[int, int]]] = {tier: deque() for tier in tiers}
        self.out_free_ns: dict[TierName, int] = dict.fromkeys(tiers, 0)
        self.back_free_ns: dict[TierName, int] = dict.fromkeys(tiers, 0)
        self.out = [(NEVER, NEVER)] * count
        self.back = [(NEVER, NEVER)] * count
        self.given_up = [False] * count
        self.stalls: list[Stall] = []
        self.late_ns = 0
        self.waited_for = 0

    def do(self, position: int, kind: int, i: int, at_ns: int) -> None:
        """Do one thing at a position, whose nominal time is at_ns."""
        now = at_ns + self.late_ns
        if kind == QUEUE:
            self.queued[self.lane[i]].append((i, now))
        elif kind == GIVE_UP:
            self.start_writes(now)
            self.given_up[i] = self.out[i][1] > now or self.out[i][0] == NEVER
        elif kind == WAIT:
            self.wait_for_room(position, i, now)
        elif kind == BACK and not self.given_up[i]:
            start = max(now, self.back_free_ns[self.lane[i]])
            self.back[i] = (start, start + self.back_ns[i])
            self.back_free_ns[self.lane[i]] = start + self.back_ns[i]
        elif kind == RUN:
            self.run(position, i, now)
        elif kind == READ:
            self.stall(position, i, now, self.back[i][1], for_write=False)

    def run(self, position: int, r: int, now: int) -> None:
        """Run a recipe, once what it reads is there."""
        inputs = (self.move_of.get(storage) for storage in self.rebuilds[r].inputs)
        for i in (i for i in inputs if i is not None):
            now = self.stall(position, i, now, self.back[i][1], for_write=False)
        self.run_ns[r] = now
        self.runs.append((position, self.recipe_ns[r]))
        self.late_ns += self.recipe_ns[r]

    def start_writes(self, before_ns: int, below: int = 0) -> None:
        """Start the queued writes whose turn comes before a time, and in any case those of the moves below an index."""
        for tier, queue in self.queued.items():
            while queue:
                i, since = queue[0]
                start = max(since, self.out_free_ns[tier])
                if not self.given_up[i]:
                    if start >= before_ns and i >= below:
                        break
                    self.out[i] = (start, start + self.out_ns[i])
                    self.out_free_ns[tier] = start + self.out_ns[i]
                queue.popleft()

    def wait_for_room(self, position: int, writes_done: int, now: int) -> None:
        self.start_writes(now, below=writes_done)
        for i in range(self.waited_for, writes_done):
            if not self.given_up[i]:
                now = self.stall(position, i, now, self.out[i][1], for_write=True)
        self.waited_for = max(self.waited_for, writes_done)

    def stall(self, position: int, i: int, now: int, until: int, *, for_write: bool) -> int:
        """Wait from now until a time, if that is later; returns the later one."""
        if until > now:
            self.stalls.append(Stall(position, i, now, until, for_write))
            self.late_ns += until - now
        return max(now, until)


def _result(step: LastStep, walk: _Walk) -> Play:
    """Close the walk at the end of the step."""
    step_ns = int(step.at_ns[-1]) + walk.late_ns
    walk.start_writes(step_ns)
    late, late_for_room = np.zeros_like(step.at_ns), np.zeros_like(step.at_ns)
    for stall in walk.stalls:
        late[stall.position - step.first_op] += stall.end_ns - stall.start_ns
        late_for_room[stall.position - step.first_op] += (stall.end_ns - stall.start_ns) * stall.for_write
    for position, recipe_ns in walk.runs:
        late[position - step.first_op] += recipe_ns
    position_ns = step.at_ns + np.cumsum(late)
    out, back = np.array(walk.out, np.int64).reshape(-1, 2).T, np.array(walk.back, np.int64).reshape(-1, 2).T
    return Play(
        step_ns=step_ns,
        stalls=tuple(walk.stalls),
        out_start_ns=out[0],
        out_end_ns=out[1],
        back_start_ns=back[0],
        back_end_ns=back[1],
        given_up=np.array(walk.given_up, np.bool_),
        position_ns=position_ns,
        room_ns=position_ns - late + late_for_room,
        run_ns=np.array(walk.run_ns, np.int64),
    )
