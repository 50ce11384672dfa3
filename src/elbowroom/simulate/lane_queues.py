"""Links: the lanes that move storages between tiers, advanced in time.

Each direction of each link is a lane that moves one whole storage at a time. A storage that goes to the host leaves by
"copy out" and returns by "copy back". One that goes on to the disk is staged on the host in between: it leaves by
"copy out" and "disk write", and returns by "disk read" and "copy back". Copies out, disk writes and disk reads run in
the order of the requests. Copies back run in the order in which they become ready. A copy out or disk read of a staged
storage starts when the host has room for it.

A copy out that is given up before it started is never made; one that had started occupies its lane until its end, for
nothing. A storage may be wanted back while it waits on the host for its disk write. Then it is copied back from the
host, unless compute waits for something that needs its room.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

OUT, WRITE, READ, BACK = range(4)  # in the order in which they start at one time
"""Copy out, disk write, disk read, copy back. Over a link from the device to the disk there are only OUT and BACK."""


class LaneUse(NamedTuple):
    """One use of a lane by a move."""

    lane: int
    move: int
    start_ns: int
    end_ns: int


class Links:
    """State of the lanes. Times never go back; every question advances them as far as it needs."""

    def __init__(self, lane_ns: Sequence[Sequence[int]], staged_bytes: Sequence[int], room_bytes: int) -> None:
        """Start with empty lanes.

        Args:
            lane_ns: per lane and move, how long the copy takes.
            staged_bytes: per move, bytes on the host in between; 0 for a move of one hop.
            room_bytes: room of the host for staged storages.
        """
        self.lane_ns, self.staged_bytes, self.room_bytes = lane_ns, staged_bytes, room_bytes
        count = len(staged_bytes)
        self.free_ns = [0, 0, 0, 0]
        self.queues: list[deque[tuple[int, int, int]]] = [deque(), deque(), deque()]
        self.ready: list[tuple[int, int, int]] = []
        self.asked = 0
        self.latest = [0] * count
        self.held_bytes, self.held_at_ns = 0, 0
        self.releases: list[tuple[int, int]] = []
        self.times: list[list[tuple[int, int] | None]] = [[None] * count for _ in range(4)]
        self.stays = [False] * count
        self.skipped: set[int] = set()
        self.waiting: dict[int, int] = {}
        """Moves that wait on the host for their request back, and since when: their disk writes were given up."""
        self.log: list[LaneUse] = []
        self.staged: list[tuple[int, int]] = []
        """(time, bytes): staged storages arrive on the host (bytes > 0) or leave it (bytes < 0)."""

    def queue(self, move: int, now: int) -> None:
        """Request a copy out; an earlier request for the same move that has not started is dropped."""
        out, write = self.times[OUT][move], self.times[WRITE][move]
        if self.latest[move] and write is None and self.latest[move] not in self.skipped:
            self.skipped.add(self.latest[move])
            if out is not None and self.staged_bytes[move]:
                self._release(move, max(now, out[1]))
        for lane in self.times:
            lane[move] = None
        self.stays[move] = False
        self._ask(OUT, move, now)
        self.latest[move] = self.asked

    def give_up(self, move: int, now: int, *, wanted: bool) -> bool:
        """Give up a copy out, as its storage is wanted back or freed; return whether it never left the device."""
        self.advance(now)
        out = self.times[OUT][move]
        self.stays[move] = out is None or out[1] > now
        if self.times[WRITE][move] is None:
            self.skipped.add(self.latest[move])
            if out is not None and self.staged_bytes[move]:
                if self.stays[move] or not wanted:
                    self._release(move, max(now, out[1]))
                else:
                    self.waiting[move] = max(now, out[1])
        return self.stays[move]

    def back(self, move: int, now: int) -> None:
        """Request a storage back that has left the device."""
        write = self.times[WRITE][move]
        self.waiting.pop(move, None)
        if write is not None:
            self._ask(READ, move, max(now, write[1]))
        else:
            self._copy_back(move, now)

    def left_ns(self, move: int) -> int | None:
        """Return when a requested copy out ends; None if it was given up."""
        if self.stays[move]:
            return None
        while self.times[OUT][move] is None:
            self._start(self._next(forced=True))
        return self._end(OUT, move)

    def returned_ns(self, move: int) -> int:
        """Return when a requested copy back ends."""
        while self.times[BACK][move] is None:
            self._start(self._next(forced=True))
        return self._end(BACK, move)

    def advance(self, before_ns: int) -> None:
        """Start every copy whose turn comes before a time."""
        while (chosen := self._next())[0] < before_ns:
            self._start(chosen)

    def live(self, lane: int) -> list[tuple[int, int]]:
        """Return (time, move) of the requests of a lane that have not started."""
        return [(at_ns, move) for at_ns, move, asked in self.queues[lane] if asked not in self.skipped]

    def _end(self, lane: int, move: int) -> int:
        times = self.times[lane][move]
        return times[1] if times else 0

    def _next(self, *, forced: bool = False) -> tuple[float, int, int]:
        """Return (start, lane, move) of the copy that starts first; start is infinite if no copy can start."""
        best: tuple[float, int, int] = (float("inf"), OUT, -1)
        blocked = best
        for lane, queue in enumerate(self.queues):
            while queue and queue[0][2] in self.skipped:
                queue.popleft()
            if queue:
                asked_ns, move, _ = queue[0]
                at = max(asked_ns, self.free_ns[lane])
                start = at if lane == WRITE else self._room_from(at, self.staged_bytes[move])
                best = min(best, (start, lane, move))
                blocked = min(blocked, (at, lane, move))
        if self.ready:
            best = min(best, (max(self.ready[0][0], self.free_ns[BACK]), BACK, self.ready[0][2]))
        if forced and best[2] < 0:
            # The host is full of storages that compute has not requested back yet: the first goes on to the disk.
            for move, since_ns in self.waiting.items():
                return max(since_ns, self.free_ns[WRITE], self.held_at_ns), WRITE, move
            return blocked
        return best

    def _room_from(self, at: int, size_bytes: int) -> float:
        """Return the first time from `at` on at which the host has room for `size_bytes`; infinite if never."""
        if not size_bytes:
            return at
        # held_bytes is that of the last start: room that was given since then stays given.
        at, held = max(at, self.held_at_ns), self.held_bytes
        if held + size_bytes <= self.room_bytes:
            return at
        for released_ns, released in sorted(self.releases):
            held -= released
            if held + size_bytes <= self.room_bytes:
                return max(at, released_ns)
        return float("inf")

    def _start(self, chosen: tuple[float, int, int]) -> None:
        """Start a copy, and request the one that follows it."""
        start, lane, move = int(chosen[0]), chosen[1], chosen[2]
        end = start + self.lane_ns[lane][move]
        self.times[lane][move] = (start, end)
        self.free_ns[lane] = end
        self.log.append(LaneUse(lane, move, start, end))
        self.held_at_ns = max(self.held_at_ns, start)
        while self.releases and self.releases[0][0] <= start:
            self.held_bytes -= heapq.heappop(self.releases)[1]
        if lane == BACK:
            heapq.heappop(self.ready)
        elif lane == WRITE and move in self.waiting:
            del self.waiting[move]
        else:
            self.queues[lane].popleft()
        size_bytes = self.staged_bytes[move]
        if not size_bytes:
            return
        if lane in (OUT, READ):
            self.held_bytes += size_bytes
            self.staged.append((start, size_bytes))
        if lane == OUT:
            self.queues[WRITE].append((end, move, self.latest[move]))
        elif lane == READ:
            self._copy_back(move, end)
        else:
            self._release(move, end)

    def _ask(self, lane: int, move: int, at_ns: int) -> None:
        self.asked += 1
        self.queues[lane].append((at_ns, move, self.asked))

    def _copy_back(self, move: int, now: int) -> None:
        self.asked += 1
        heapq.heappush(self.ready, (now, self.asked, move))

    def _release(self, move: int, at_ns: int) -> None:
        heapq.heappush(self.releases, (at_ns, self.staged_bytes[move]))
        self.staged.append((at_ns, -self.staged_bytes[move]))
