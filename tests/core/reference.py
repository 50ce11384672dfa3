"""A second simulator for the tests: slow, storage by storage and event by event, sharing nothing with the library's.

It knows the step as a list of moments. At each of them every storage is looked at one by one: is it allocated, is it
away by the plan, has a recipe made it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from elbowroom.machine import Machine
from elbowroom.plan import Plan, Recompute
from elbowroom.trace import Save, Trace


@dataclass
class Moment:
    """What is allocated at one moment: `position` of the op, storages as the plan has them, bytes of a recipe."""

    position: int
    live: dict[int, int]
    away: set[int]
    recipe_bytes: int = 0
    recompute: int | None = None
    op: int | None = None
    """The op that runs (again); None before it starts."""

    def held(self, unfinished: set[int]) -> int:
        """Bytes on the device when the writes of some storages have not ended."""
        here = sum(size for storage, size in self.live.items() if storage not in self.away or storage in unfinished)
        return here + self.recipe_bytes


@dataclass
class Write:
    storage: int
    queued_ns: int
    start_ns: int = -1
    end_ns: int = -1
    given_up: bool = False


@dataclass
class Result:
    """What the reference finds; `curve` is what the device holds over time."""

    peak: int
    step_ns: int
    curve: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class Reference:
    """One step of a trace under a plan."""

    def __init__(self, trace: Trace, machine: Machine, plan: Plan) -> None:
        self.trace, self.plan = trace, plan
        self.first, self.end = trace.steps[-1]
        self.saves: dict[int, Save] = {s.storage: s for s in trace.saves if self.first <= s.saved_at <= self.end}
        self.swaps = {swap.storage: swap for swap in plan.swaps}
        self.order = sorted(self.swaps, key=lambda storage: list(self.saves).index(storage))
        self.dropped = {s: r for r, each in enumerate(plan.recomputes) for s in each.storages}
        self.link = machine.links[0] if machine.links else None
        self.ticks = sorted({p for s in self.saves.values() for p in (s.saved_at, *s.read_at) if p <= self.end})
        self.choice = {a.op: next(c for c in trace.ops[a.op].choices if c.name == a.choice) for a in plan.algorithms}
        self.size = self.sizes()
        self.moments = self.all_moments()
        self.peak = max(moment.held(set()) for moment in self.moments)
        self.waits = self.all_waits()

    def sizes(self) -> dict[int, int]:
        """Bytes of every storage with the chosen algorithms."""
        size = {s: storage.size_bytes for s, storage in enumerate(self.trace.storages)}
        for op, choice in self.choice.items():
            mine = [e.storage for e in self.trace.events if e.op == op and e.size_bytes > 0]
            freed = {e.storage for e in self.trace.events if e.op == op and e.size_bytes < 0}
            found = [s for s in mine if s in freed and self.trace.storages[s].category == "workspace"]
            assert found, "the reference only knows workspaces that the trace has"
            size[max(found, key=lambda s: (size[s], s))] = choice.workspace_bytes
        return size

    def op_ns(self, op: int) -> int:
        return self.choice[op].duration_ns if op in self.choice else self.trace.ops[op].duration_ns

    def away_at(self, position: int, rebuilt: set[int]) -> set[int]:
        """Storages that the plan has off the device at a position, when the recipes `rebuilt` have run."""
        away: set[int] = set()
        for storage, swap in self.swaps.items():
            save = self.saves[storage]
            assert save.idle_from is not None
            if save.idle_from <= position and (position < swap.back_before_op or not save.read_at):
                away.add(storage)
        for storage, r in self.dropped.items():
            idle = self.saves[storage].idle_from
            assert idle is not None
            before = self.plan.recomputes[r].before_op
            if idle <= position and (position < before or (position == before and r not in rebuilt)):
                away.add(storage)
        return away

    def all_moments(self) -> list[Moment]:
        live: dict[int, int] = {}
        events = list(self.trace.events)
        while events and events[0].op < self.first:
            event = events.pop(0)
            live.pop(event.storage, None)
            if event.size_bytes > 0:
                live[event.storage] = self.size[event.storage]
        moments: list[Moment] = []
        rebuilt: set[int] = set()
        for position in range(self.first, self.end + 1):
            moments.append(Moment(position, dict(live), self.away_at(position, rebuilt)))
            for r, recompute in enumerate(self.plan.recomputes):
                if recompute.before_op == position:
                    moments += self.recipe_moments(position, r, recompute, live, rebuilt)
                    rebuilt.add(r)
            away = self.away_at(position, rebuilt)
            if position < self.end:
                moments.append(Moment(position, dict(live), away, op=position))
            while events and events[0].op == position < self.end:
                event = events.pop(0)
                live.pop(event.storage, None)
                if event.size_bytes > 0:
                    live[event.storage] = self.size[event.storage]
                moments.append(Moment(position, dict(live), away, op=position))
        return moments

    def recipe_moments(
        self, position: int, r: int, recompute: Recompute, live: dict[int, int], rebuilt: set[int]
    ) -> list[Moment]:
        """Run a recipe: what it has made is held until no later op of it uses it, and wanted storages stay."""
        stay = {storage for storage in recompute.storages if storage in live}
        away = self.away_at(position, rebuilt)
        made: dict[int, int] = {}
        moments: list[Moment] = []

        def note(op: int) -> None:
            moments.append(Moment(position, dict(live), away, sum(made.values()), r, op))

        for turn, op in enumerate(recompute.recipe):
            note(op)
            own: set[int] = set()
            for event in (event for event in self.trace.events if event.op == op):
                if event.size_bytes > 0:
                    made[event.storage] = self.size[event.storage]
                    own.add(event.storage)
                    note(op)
                elif event.storage in own:
                    del made[event.storage]
                    own.discard(event.storage)
                    note(op)
            later = {
                s for o in recompute.recipe[turn + 1 :] for s in (*self.trace.ops[o].reads, *self.trace.ops[o].writes)
            }
            for storage in list(made):
                if storage not in later and storage not in stay:
                    del made[storage]
        moments.append(Moment(position, dict(live), away, sum(made.values()), r, None))
        return moments

    def all_waits(self) -> dict[int, int]:
        """Per tick, how many writes must have ended so that the peak holds whatever the later ones do."""
        waits: dict[int, int] = {}
        done = 0
        for tick, following in pairwise([*self.ticks, self.end + 1]):
            for moment in (m for m in self.moments if tick <= m.position < following):
                while moment.held(set(self.order[done:]) & set(self.swaps)) > self.peak:
                    done += 1
            waits[tick] = done
        return waits

    def copy_ns(self, storage: int, rate: int) -> int:
        assert self.link is not None
        return self.link.latency_ns + -(-self.size[storage] * 10**9 // (rate // self.link.shared_by or 1))

    def run(self) -> Result:
        """Play the step against the clock, again and again until it ends as it began, at most 8 times."""
        self.now, self.free_out, self.free_back = 0, 0, 0
        self.writes = dict[int, Write]()
        state: tuple[object, ...] = ((), 0, 0)
        for _ in range(8):
            self.start, self.backs, self.left = self.now, dict[int, int](), set[int]()
            result = Result(self.peak, 0)
            for position in range(self.first, self.end + 1):
                self.at_position(position, result)
            self.start_writes(self.now, set())
            result.step_ns = self.now - self.start
            result.curve = [(at - self.start, size) for at, size in result.curve]
            waiting = [(w.storage, w.queued_ns) for w in self.writes.values() if w.start_ns < 0 and not w.given_up]
            before, state = (
                state,
                (
                    tuple((storage, max(0, queued - self.now)) for storage, queued in waiting),
                    max(0, self.free_out - self.now),
                    max(0, self.free_back - self.now),
                ),
            )
            if state == before:
                break
        return result

    def start_writes(self, before_ns: int, wanted: set[int]) -> None:
        """Start writes in their order whose turn comes before a time, or up to the last one that is wanted."""
        waiting = [w for w in self.writes.values() if w.start_ns < 0 and not w.given_up]
        for i, write in enumerate(waiting):
            start = max(write.queued_ns, self.free_out)
            if start >= before_ns and not any(w.storage in wanted for w in waiting[i:]):
                return
            assert self.link is not None
            write.start_ns, write.end_ns = start, start + self.copy_ns(write.storage, self.link.out_bytes_per_s)
            self.free_out = write.end_ns

    def at_position(self, position: int, result: Result) -> None:
        """What happens before an op, and the op."""
        arrived = self.now
        mine = [m for m in self.moments if m.position == position]
        before = [m for m in self.moments if m.position < position][-1:]
        shown = [(arrived, self.height(m)) for m in before]
        self.queue_writes(position)
        self.wait_for_writes(position)
        room = self.now
        shown = shown if room > arrived else []
        self.start_backs(position)
        if position in self.ticks:
            self.start_writes(self.now, set())
            of_now = [w for w in self.writes.values() if w.queued_ns >= self.start and not w.given_up]
            ended = [w for w in of_now if w.start_ns >= 0 and w.end_ns <= self.now]
            self.left |= {w.storage for w in ended}
        waiting = (room, self.height(mine[0]))
        runs = self.run_recipes(position, mine)
        reading = [s for s in self.order if self.saves[s].read_at and self.saves[s].read_at[0] == position]
        self.now = max([self.now, *(self.backs.get(s, 0) for s in reading)])
        running = [m for m in mine if m.recompute is None][1:] or mine[-1:]
        shown += [waiting] if (runs[0][0] if runs else self.now) > room else []
        for entry in (*shown, *runs, (self.now, max(map(self.height, running)))):
            if not result.curve or entry[1] != result.curve[-1][1]:
                result.curve.append(entry)
        self.now += self.op_ns(position) if position < self.end else 0

    def queue_writes(self, position: int) -> None:
        for storage in self.order:
            if self.saves[storage].saved_at == position:
                self.writes.pop(storage, None)
                self.writes[storage] = Write(storage, self.now)
        gone = [s for s in self.order if not self.saves[s].read_at and self.freed_by(s) == position - 1]
        for storage in (*self.returning(position), *gone):
            self.start_writes(self.now, set())
            write = self.writes[storage]
            write.given_up = write.start_ns < 0 or write.end_ns > self.now

    def wait_for_writes(self, position: int) -> None:
        if position in self.waits:
            must = set(self.order[: self.waits[position]])
            self.start_writes(self.now, {s for s in must if s in self.writes})
            ends = [
                w.end_ns for s, w in self.writes.items() if s in must and w.queued_ns >= self.start and not w.given_up
            ]
            self.now = max([self.now, *ends])

    def returning(self, position: int) -> list[int]:
        """What starts back here, what is read first and was saved last first."""
        found = [s for s in self.order if self.saves[s].read_at and self.swaps[s].back_before_op == position]
        return sorted(found, key=lambda s: (self.saves[s].read_at[0], -self.order.index(s)))

    def start_backs(self, position: int) -> None:
        for storage in self.returning(position):
            if not self.writes[storage].given_up:
                assert self.link is not None
                start = max(self.now, self.free_back)
                self.backs[storage] = self.free_back = start + self.copy_ns(storage, self.link.back_bytes_per_s)

    def run_recipes(self, position: int, mine: list[Moment]) -> list[tuple[int, int]]:
        """Run the recipes that are due, each once what it reads is there."""
        shown: list[tuple[int, int]] = []
        for r, recompute in enumerate(self.plan.recomputes):
            if recompute.before_op != position:
                continue
            made: set[int] = set()
            for op in recompute.recipe:
                made |= {e.storage for e in self.trace.events if e.op == op and e.size_bytes > 0}
                inputs = {s for s in self.trace.ops[op].reads if s not in made}
                self.now = max([self.now, *(self.backs.get(s, 0) for s in inputs)])
            for op in recompute.recipe:
                beat = [m for m in mine if (m.recompute, m.op) == (r, op)]
                shown.append((self.now, max(map(self.height, beat))))
                self.now += self.op_ns(op)
            shown.append((self.now, self.height(next(m for m in mine if (m.recompute, m.op) == (r, None)))))
        return shown

    def height(self, moment: Moment) -> int:
        """Bytes on the device at a moment, as the writes stand now."""
        return moment.held({storage for storage in self.swaps if storage not in self.left})

    def freed_by(self, storage: int) -> int | None:
        return next((e.op for e in self.trace.events if e.storage == storage and e.size_bytes < 0), None)
