"""A second simulator for the tests: slow, storage by storage and event by event, sharing nothing with the library's.

It knows the step as a list of moments. At each of them every storage is looked at one by one: is it allocated, is it
away by the plan, has a recipe made it again. It plays equal steps one after the other (reference_lanes.py has the
clock), and tells what the last of them did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from elbowroom.machine import Link, Machine
from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.trace import Save, Trace
from tests.core.reference_lanes import BACK, OUT, READ, WRITE, Journey, Lanes

STEPS = 8


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
class Window:
    """When the swapped storage of one swap may be away.

    Attributes:
        rank: of its write among those that are asked for at one position.
        queued: position at which its write is asked for.
        idle: position from which it may be away.
        back: position at which it starts back.
        use: position at which it is needed; None where it never is again.
        wraps: whether it is away across the end of the step.
    """

    rank: tuple[int, ...]
    queued: int
    idle: int
    back: int
    use: int | None
    wraps: bool


@dataclass
class Result:
    """What the reference finds; `curve` is what the device holds over time, `step_ns` the times of all steps."""

    peak: int
    steps_ns: list[int] = field(default_factory=list[int])
    curve: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    most_staged: int = 0

    @property
    def step_ns(self) -> int:
        return self.steps_ns[-1]


class Reference:
    """Equal steps of a trace under a plan."""

    def __init__(self, trace: Trace, machine: Machine, plan: Plan) -> None:
        self.trace, self.plan = trace, plan
        self.first, self.end = trace.steps[-1]
        self.parts = [p for p in trace.parts if self.first <= p.first_op and p.end_op <= self.end]
        self.saves: dict[int, Save] = {s.storage: s for s in trace.saves if self.first <= s.saved_at <= self.end}
        self.swaps = {swap.storage: swap for swap in plan.swaps}
        self.windows = {storage: self.window(swap) for storage, swap in self.swaps.items()}
        self.order = sorted(self.swaps, key=lambda s: (self.windows[s].queued, self.windows[s].rank))
        self.dropped = {s: r for r, each in enumerate(plan.recomputes) for s in each.storages}
        self.links = {(link.upper, link.lower): link for link in machine.links}
        self.host = next((tier.capacity_bytes for tier in machine.tiers if tier.name == "host"), 0)
        self.ticks = self.all_ticks()
        self.choice = {a.op: next(c for c in trace.ops[a.op].choices if c.name == a.choice) for a in plan.algorithms}
        self.scratch: dict[int, int] = {}
        self.size = self.sizes()
        self.moments = self.all_moments()
        self.peak = max(moment.held(set()) for moment in self.moments)
        self.waits = self.all_waits()

    def window(self, swap: Swap) -> Window:
        """Of a save what the trace says; of any other storage from one use to the next, perhaps in the next step."""
        storage, back = swap.storage, swap.back_before_op
        if storage in self.saves:
            save = self.saves[storage]
            assert save.idle_from is not None
            rank = (0, list(self.saves).index(storage))
            return Window(rank, save.saved_at, save.idle_from, back, save.read_at[0] if save.read_at else None, False)
        idle = swap.out_after_op + 1
        uses = self.uses(storage)
        use = next((position for position in uses if position > idle), uses[0])
        leaves = ("parameter", "optimizer_state", "gradient").index(self.trace.storages[storage].category)
        return Window((1, leaves, storage), idle, idle, back, use, back < idle)

    def uses(self, storage: int) -> list[int]:
        """Where a state or gradient must be there: at ops that use it, or where the part begins that these are in."""
        is_gradient = self.trace.storages[storage].category == "gradient"
        named = [part for part in self.parts if storage in part.storages]
        begin = {op: p.first_op for p in (self.parts if is_gradient else named) for op in range(p.first_op, p.end_op)}
        ops = range(self.first, self.end)
        using = [op for op in ops if storage in (*self.trace.ops[op].reads, *self.trace.ops[op].writes)]
        return sorted({*(begin.get(op, op) for op in using), *(part.first_op for part in named)})

    def all_ticks(self) -> list[int]:
        """Where the runtime has control: at saves and reads, parts, and where states leave, start back and are used."""
        saves = [save for save in self.trace.saves if self.first <= save.saved_at <= self.end]
        found = {p for save in saves for p in (save.saved_at, *save.read_at) if p <= self.end}
        found |= {border for part in self.parts for border in (part.first_op, part.end_op)}
        for storage, window in self.windows.items():
            if storage not in self.saves and window.use is not None:
                found |= {self.first, window.queued, window.use, window.back}
        return sorted(found)

    def sizes(self) -> dict[int, int]:
        """Bytes of every storage with the chosen algorithms; what needs a workspace that the trace lacks is scratch."""
        size = {s: storage.size_bytes for s, storage in enumerate(self.trace.storages)}
        for op, choice in self.choice.items():
            mine = [e.storage for e in self.trace.events if e.op == op and e.size_bytes > 0]
            freed = {e.storage for e in self.trace.events if e.op == op and e.size_bytes < 0}
            found = [s for s in mine if s in freed and self.trace.storages[s].category == "workspace"]
            if found:
                size[max(found, key=lambda s: (size[s], s))] = choice.workspace_bytes
            else:
                self.scratch[op] = choice.workspace_bytes
        return size

    def op_ns(self, op: int) -> int:
        return self.choice[op].duration_ns if op in self.choice else self.trace.ops[op].duration_ns

    def away_at(self, position: int, rebuilt: set[int]) -> set[int]:
        """Storages that the plan has off the device at a position, when the recipes `rebuilt` have run."""
        away: set[int] = set()
        for storage, window in self.windows.items():
            before = position < window.back or window.use is None
            if (window.idle <= position or before) if window.wraps else (window.idle <= position and before):
                away.add(storage)
        for storage, r in self.dropped.items():
            idle = self.saves[storage].idle_from
            assert idle is not None
            before_op = self.plan.recomputes[r].before_op
            if idle <= position and (position < before_op or (position == before_op and r not in rebuilt)):
                away.add(storage)
        return away

    def fullest(self, op: int) -> int:
        """How many events of an op have happened when it holds most, everything kept: 0 only where it has none."""
        held, most = 0, list[int]()
        for event in (e for e in self.trace.events if e.op == op):
            held += event.size_bytes
            most.append(held)
        return most.index(max(most)) + 1 if most else 0

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
            scratch = self.scratch.get(position, 0)
            at = self.fullest(position)
            if position < self.end:
                moments.append(Moment(position, dict(live), away, 0 if at else scratch, op=position))
            happened = 0
            while events and events[0].op == position < self.end:
                event = events.pop(0)
                happened += 1
                live.pop(event.storage, None)
                if event.size_bytes > 0:
                    live[event.storage] = self.size[event.storage]
                moments.append(Moment(position, dict(live), away, scratch if happened == at else 0, op=position))
        return moments

    def recipe_moments(
        self, position: int, r: int, recompute: Recompute, live: dict[int, int], rebuilt: set[int]
    ) -> list[Moment]:
        """Run a recipe: what it has made is held until no later op of it uses it, and wanted storages stay."""
        stay = {storage for storage in recompute.storages if storage in live}
        away = self.away_at(position, rebuilt)
        made: dict[int, int] = {}
        moments: list[Moment] = []

        def note(op: int, scratch: int = 0) -> None:
            moments.append(Moment(position, dict(live), away, sum(made.values()) + scratch, r, op))

        for turn, op in enumerate(recompute.recipe):
            at = self.fullest(op)
            note(op, 0 if at else self.scratch.get(op, 0))
            own: set[int] = set()
            for happened, event in enumerate((event for event in self.trace.events if event.op == op), 1):
                if event.size_bytes > 0:
                    made[event.storage] = self.size[event.storage]
                    own.add(event.storage)
                elif event.storage in own:
                    del made[event.storage]
                    own.discard(event.storage)
                note(op, self.scratch.get(op, 0) if happened == at else 0)
            later = {
                s for o in recompute.recipe[turn + 1 :] for s in (*self.trace.ops[o].reads, *self.trace.ops[o].writes)
            }
            for storage in list(made):
                if storage not in later and storage not in stay:
                    del made[storage]
        moments.append(Moment(position, dict(live), away, sum(made.values()), r, None))
        return moments

    def all_waits(self) -> dict[int, int]:
        """Per tick, how many writes must have ended so that the peak holds whatever the later ones do.

        The writes of the step before come first, then those of this step.
        """
        row = [(step, storage) for step in (0, 1) for storage in self.order]
        waits: dict[int, int] = {}
        done = 0
        for tick, following in pairwise([*self.ticks, self.end + 1]):
            for moment in (m for m in self.moments if tick <= m.position < following):
                while moment.held(self.unfinished(row[done:], moment)) > self.peak:
                    done += 1
            waits[tick] = done
        return waits

    def unfinished(self, row: list[tuple[int, int]], moment: Moment) -> set[int]:
        return {storage for step, storage in row if step == self.step_of(storage, moment.position)}

    def step_of(self, storage: int, position: int) -> int:
        """Whose write has a storage away at a position: of the step before (0), or of this one."""
        return 0 if self.windows[storage].wraps and position < self.windows[storage].back else 1

    def journey(self, storage: int) -> Journey:
        """A journey that has not begun."""
        tier = self.swaps[storage].tier
        near = self.links.get(("device", tier)) or self.links["device", "host"]
        takes = {OUT: self.copy_ns(storage, near, near.out_bytes_per_s)}
        takes[BACK] = self.copy_ns(storage, near, near.back_bytes_per_s)
        if ("device", tier) not in self.links:
            far = self.links["host", "disk"]
            takes[WRITE] = self.copy_ns(storage, far, far.out_bytes_per_s)
            takes[READ] = self.copy_ns(storage, far, far.back_bytes_per_s)
        return Journey(storage, self.size[storage], takes, {})

    def copy_ns(self, storage: int, link: Link, rate: int) -> int:
        return link.latency_ns + -(-self.size[storage] * 10**9 // (rate // link.shared_by or 1))

    def staging_room(self) -> int:
        """Bytes of the host for what passes: all but the most that those hold that stay there."""
        on_host = [s for s in self.order if self.swaps[s].tier == "host"]
        most = 0
        for moment in self.moments:
            saved = [s for s in on_host if s in self.saves and self.windows[s].queued <= moment.position]
            held = [s for s in on_host if s not in self.saves] + [s for s in saved if s in moment.live]
            most = max(most, sum(self.size[s] for s in held))
        return self.host - most

    def run(self, steps: int = STEPS) -> Result:
        """Play steps one after the other; at the start of the first, what is away across the end has long left."""
        self.lanes = Lanes(self.staging_room())
        self.journeys: dict[int, Journey] = {}
        self.left = {storage for storage, window in self.windows.items() if window.wraps}
        for storage in self.left:
            journey = self.journeys[storage] = self.journey(storage)
            journey.times = {lane: (-1, -1) for lane in (OUT, WRITE) if lane in journey.takes_ns}
        result = Result(self.peak)
        for _ in range(steps):
            start, result.curve = self.lanes.now, []
            for position in range(self.first, self.end + 1):
                self.at_position(position, result)
            result.steps_ns.append(self.lanes.now - start)
            result.curve = [(at - start, size) for at, size in result.curve]
        result.most_staged = self.lanes.most_held
        return result

    def at_position(self, position: int, result: Result) -> None:
        """What happens before an op, and the op."""
        lanes = self.lanes
        arrived = lanes.now
        mine = [m for m in self.moments if m.position == position]
        before = ([m for m in self.moments if m.position < position] or self.moments)[-1]  # at first, the step before's
        shown = [(arrived, self.height(before))]
        self.queue_writes(position)
        self.wait_for_writes(position)
        room = lanes.now
        shown = shown if room > arrived else []
        for storage in self.returning(position):
            if not self.journeys[storage].given_up:
                lanes.back(self.journeys[storage])
        if position in self.ticks:
            self.left |= {s for s, j in self.journeys.items() if j.ended(OUT, lanes.now) and not j.given_up}
        waiting = (room, self.height(mine[0]))
        runs = self.run_recipes(position, mine)
        self.wait_for_data([s for s in self.order if self.windows[s].use == position])
        running = [m for m in mine if m.recompute is None][1:] or mine[-1:]
        shown += [waiting] if (runs[0][0] if runs else lanes.now) > room else []
        for entry in (*shown, *runs, (lanes.now, max(map(self.height, running)))):
            if not result.curve or entry[1] != result.curve[-1][1]:
                result.curve.append(entry)
        lanes.pass_ns(self.op_ns(position) if position < self.end else 0)

    def queue_writes(self, position: int) -> None:
        """Ask for the writes that begin here; give up those that have not ended of what is wanted back, or freed."""
        for storage in self.order:
            if self.windows[storage].queued == position:
                last = self.journeys.get(storage)
                if last is not None and not (last.given_up or last.asked_back):
                    self.lanes.cancel(last, keep_on_host=False)
                self.journeys[storage] = self.journey(storage)
                self.left.discard(storage)
                self.lanes.ask(OUT, self.journeys[storage], self.lanes.now)
        gone = [s for s in self.order if self.windows[s].use is None and self.freed_by(s) == position - 1]
        for storage in (*self.returning(position), *gone):
            journey = self.journeys[storage]
            journey.given_up = not journey.ended(OUT, self.lanes.now)
            self.lanes.cancel(journey, keep_on_host=storage not in gone and not journey.given_up)

    def wait_for_writes(self, position: int) -> None:
        if position in self.waits:
            row = [(step, storage) for step in (0, 1) for storage in self.order][: self.waits[position]]
            must = [self.journeys[s] for step, s in row if step == self.step_of(s, position) and s in self.journeys]
            self.lanes.wait(OUT, [journey for journey in must if not journey.given_up])

    def wait_for_data(self, storages: list[int]) -> None:
        """Wait until storages are back, as far as they were asked for."""
        known = [self.journeys[s] for s in storages if s in self.journeys]
        self.lanes.wait(BACK, [journey for journey in known if journey.asked_back])

    def returning(self, position: int) -> list[int]:
        """What starts back here, what is used first and was saved last first."""
        found = [(s, w) for s, w in self.windows.items() if w.use is not None and w.back == position]
        found.sort(key=lambda each: (each[1].use, [-part for part in self.number(each[0])]))
        return [storage for storage, _ in found]

    def number(self, storage: int) -> tuple[int, ...]:
        """What orders storages as they were saved; those that are no saves come after, as they become idle."""
        window = self.windows[storage]
        return (0, *window.rank) if storage in self.saves else (1, window.queued, storage)

    def run_recipes(self, position: int, mine: list[Moment]) -> list[tuple[int, int]]:
        """Run the recipes that are due, each once what it reads is there."""
        shown: list[tuple[int, int]] = []
        for r, recompute in enumerate(self.plan.recomputes):
            if recompute.before_op != position:
                continue
            made: set[int] = set()
            for op in recompute.recipe:
                made |= {e.storage for e in self.trace.events if e.op == op and e.size_bytes > 0}
                self.wait_for_data([s for s in self.trace.ops[op].reads if s not in made])
            for op in recompute.recipe:
                beat = [m for m in mine if (m.recompute, m.op) == (r, op)]
                shown.append((self.lanes.now, max(map(self.height, beat))))
                self.lanes.pass_ns(self.op_ns(op))
            shown.append((self.lanes.now, self.height(next(m for m in mine if (m.recompute, m.op) == (r, None)))))
        return shown

    def height(self, moment: Moment) -> int:
        """Bytes on the device at a moment, as the writes stand now."""
        return moment.held({storage for storage in self.swaps if storage not in self.left})

    def freed_by(self, storage: int) -> int | None:
        return next((e.op for e in self.trace.events if e.storage == storage and e.size_bytes < 0), None)
