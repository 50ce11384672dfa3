"""The lanes of the reference simulator: a clock that goes from event to event, and copies that start as it passes.

The library's lanes are asked for one copy at a time and work out only what that needs. Here time passes: at each moment
everything that may start does, in the order copy out, disk write, disk read, copy back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LANES = OUT, WRITE, READ, BACK = "copy out", "disk write", "disk read", "copy back"


@dataclass(eq=False)
class Journey:
    """One swap out of a storage, and its way back.

    Attributes:
        storage: its id.
        size: bytes.
        takes_ns: by lane, how long a copy takes; a journey with a disk write is staged on the host.
        times: by lane, (start, end) of the copies made.
        given_up: it was wanted back, or freed, or saved anew before it had left.
        asked_back: its swap back was asked for.
    """

    storage: int
    size: int
    takes_ns: dict[str, int]
    times: dict[str, tuple[int, int]]
    given_up: bool = False
    asked_back: bool = False

    @property
    def staged(self) -> int:
        """Bytes on the host in between."""
        return self.size if WRITE in self.takes_ns else 0

    def ended(self, lane: str, now: int) -> bool:
        return lane in self.times and self.times[lane][1] <= now


class Lanes:
    """The lanes, the room of the host, and the time."""

    def __init__(self, room: int) -> None:
        self.now, self.room, self.held = 0, room, 0
        self.free: dict[str, int] = dict[str, int].fromkeys(LANES, 0)
        self.queues: dict[str, list[tuple[int, Journey]]] = {lane: [] for lane in LANES}
        self.releases: list[tuple[int, int]] = []
        self.waiting: list[tuple[int, Journey]] = []
        self.most_held = 0

    def ask(self, lane: str, journey: Journey, at: int) -> None:
        """Ask for a copy. Copies back go in the order they are ready, the others in the order they were asked for."""
        self.queues[lane].append((at, journey))
        if lane == BACK:
            self.queues[lane].sort(key=lambda entry: entry[0])

    def cancel(self, journey: Journey, *, keep_on_host: bool) -> None:
        """Do not make what has not started of a journey's copy out and disk write."""
        for lane in (OUT, WRITE):
            self.queues[lane] = [entry for entry in self.queues[lane] if entry[1] is not journey]
        if OUT in journey.times and WRITE not in journey.times and journey.staged:
            on_host_from = max(self.now, journey.times[OUT][1])
            if keep_on_host:
                self.waiting.append((on_host_from, journey))
            else:
                self.releases.append((on_host_from, journey.staged))

    def back(self, journey: Journey) -> None:
        """Ask for a storage that has left the device."""
        journey.asked_back = True
        self.waiting = [entry for entry in self.waiting if entry[1] is not journey]
        if WRITE in journey.times:
            self.ask(READ, journey, max(self.now, journey.times[WRITE][1]))
        else:
            self.ask(BACK, journey, self.now)

    def pass_ns(self, ns: int) -> None:
        """Let time pass; what would start at its end does not yet."""
        until = self.now + ns
        while self.now < until:
            self.start_all()
            self.now = min([until, *self.events()])

    def wait(self, lane: str, journeys: Sequence[Journey]) -> None:
        """Let time pass until these have ended their copy on a lane."""
        while not all(journey.ended(lane, self.now) for journey in journeys):
            self.start_all()
            if not all(lane in journey.times for journey in journeys) and self.stuck():
                since, journey = self.waiting.pop(0)
                self.ask(WRITE, journey, max(since, self.now))
                self.start_all()
            self.now = min(self.events())

    def events(self) -> list[int]:
        """Times to come at which something ends, is ready, or gives room."""
        asked = [at for queue in self.queues.values() for at, _ in queue]
        return [at for at in (*self.free.values(), *asked, *(at for at, _ in self.releases)) if at > self.now]

    def stuck(self) -> bool:
        """Whether nothing that is asked for can ever start, as the host is full of what waits to be asked back."""
        if self.queues[WRITE] or self.queues[BACK]:
            return False
        left = self.held - sum(size for _, size in self.releases)
        return all(j.staged and left + j.staged > self.room for lane in (OUT, READ) for _, j in self.queues[lane][:1])

    def start_all(self) -> None:
        """Start everything that may start now."""
        self.held -= sum(size for at, size in self.releases if at <= self.now)
        self.releases = [entry for entry in self.releases if entry[0] > self.now]
        while any(self.start(lane) for lane in LANES):
            pass

    def start(self, lane: str) -> bool:
        """Start the first copy that is asked of a lane, if it may start now."""
        if not self.queues[lane] or self.free[lane] > self.now or self.queues[lane][0][0] > self.now:
            return False
        _, journey = self.queues[lane][0]
        if lane in (OUT, READ) and journey.staged:
            if self.held + journey.staged > self.room:
                return False
            self.held += journey.staged
            self.most_held = max(self.most_held, self.held)
        self.queues[lane].pop(0)
        end = self.free[lane] = self.now + journey.takes_ns[lane]
        journey.times[lane] = (self.now, end)
        if lane == OUT and journey.staged:
            self.ask(WRITE, journey, end)
        if lane == READ:
            self.ask(BACK, journey, end)
        if lane in (WRITE, BACK) and journey.staged:
            self.releases.append((end, journey.staged))
        return True
