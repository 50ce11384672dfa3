"""Partners: how late other ranks are for what a rank exchanges with them, from the traces of all of them.

Computes: the last steps of several ranks together, three times over, each as overlap.py runs it. What is received
comes once its sender has sent it. So the waits of a pipeline's stages are there: its bubble. In the last round they are
as in the middle of a training. Where ranks are equal but for their speed, a collective starts when the last one comes.
When right: as far as overlap.py is. The n-th message from one rank to another is the n-th that is received.
Ignores: that a sender waits for its receiver, and messages whose other rank was not captured: it is on time.
Cost: linear in the ops of all steps, times the rounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple, final

from elbowroom.step.exchange_times import kind_of
from elbowroom.step.overlap import StreamClock
from elbowroom.trace import Op, Step, Trace

WAITS = "the time in which a rank waits until another one sends (--rank all has it), as stages of a pipeline do"
"""What a capture remarks of a rank that receives."""
ROUNDS = 3
"""Steps that are run: with the third one, the first ranks do not run ahead any more."""

Meeting = Hashable
"""What ranks exchange at one time: a message, or a collective."""


def with_partners(traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """Return the traces of ranks of one job, by rank, with how late the others are for each message.

    Traces of ranks that send each other nothing are returned as they are.
    """
    if not any(each.peer in traces for trace in traces.values() for each in trace.exchanges):
        return dict(traces)
    ranks = {rank: _Rank(rank, trace, frozenset(traces), collectives=False) for rank, trace in traces.items()}
    _run(ranks)
    return {rank: each.told() for rank, each in ranks.items()}


def with_stragglers(trace: Trace, slowness: Mapping[int, float]) -> dict[int, Trace]:
    """Return the traces of ranks that do the same at several speeds, with how late the others are.

    Args:
        trace: the trace of a rank on time.
        slowness: by rank, what its ops but for collectives take, as a multiple of what they take in the trace.
    """
    traces = {rank: slowed(trace, factor) for rank, factor in slowness.items()}
    ranks = {rank: _Rank(rank, each, frozenset(traces), collectives=True) for rank, each in traces.items()}
    _run(ranks)
    return {rank: each.told() for rank, each in ranks.items()}


def slowed(trace: Trace, factor: float) -> Trace:
    """Return a trace whose ops take a multiple of their time; collectives keep theirs."""
    called = {each.op for each in trace.exchanges}
    ops = (op if number in called else _slower(op, factor) for number, op in enumerate(trace.ops))
    return replace(trace, ops=tuple(ops))


def _slower(op: Op, factor: float) -> Op:
    choices = tuple(replace(each, duration_ns=round(each.duration_ns * factor)) for each in op.choices)
    return replace(op, duration_ns=round(op.duration_ns * factor), choices=choices)


@final
class _Rank:
    """A rank that goes on until it needs what another one has not sent.

    Args:
        rank: its number.
        trace: its trace.
        known: the ranks that are there.
        collectives: whether the others are met in collectives too.

    Attributes:
        late: by op, how late its partners were in the last round.
    """

    def __init__(self, rank: int, trace: Trace, known: frozenset[int], *, collectives: bool) -> None:
        self._rank, self._trace, self._known, self._collectives = rank, trace, known, collectives
        self._step = trace.steps[-1] if trace.steps else Step(0, 0)
        self._clock = StreamClock(trace, self._step)
        self._todo = deque(number for _ in range(ROUNDS) for number in range(*self._step))
        self._waiting: dict[int | str, deque[_Pending]] = defaultdict(deque)
        self._lane_of: dict[int, int | str] = {}
        self._counts: Counter[Hashable] = Counter()
        self.late: dict[int, int] = {}

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._todo and not any(self._waiting.values())

    def advance(self, arrivals: dict[Meeting, dict[int, int]]) -> bool:
        """Go on as far as can be; return whether anything was done."""
        moved = self._settle(arrivals)
        while self._todo and not self._waits(self._todo[0]):
            self._begin(self._todo.popleft(), arrivals)
            self._settle(arrivals)
            moved = True
        return moved

    def give_up(self, arrivals: dict[Meeting, dict[int, int]]) -> None:
        """Take the first thing that is waited for as there: nobody sends it."""
        self._settle(arrivals, gives_up=True)

    def told(self) -> Trace:
        """Return the trace with how late the others are."""
        own = (each._replace(late_ns=self.late.get(each.op, 0)) for each in self._trace.exchanges)
        remarks = self._trace.remarks
        if all(each.peer is None or each.peer in self._known for each in self._trace.exchanges):
            remarks = tuple(each for each in remarks if each.name != WAITS)
        return replace(self._trace, exchanges=tuple(own), remarks=remarks)

    def _waits(self, number: int) -> bool:
        """Return whether an op needs what is not there yet."""
        op = self._trace.ops[number]
        return any(storage in self._lane_of for storage in (*op.reads, *op.writes))

    def _begin(self, number: int, arrivals: dict[Meeting, dict[int, int]]) -> None:
        clock, exchange = self._clock, self._clock.exchanges.get(number)
        ready = clock.ready_ns(number)
        if exchange is None:
            clock.run(number, ready)
            return
        lane, op = clock.lane_of(number), self._trace.ops[number]
        meeting, partners = self._meeting(number)
        if kind_of(op.name) == "send":
            start = max(ready, clock.free[lane])
            arrivals.setdefault(meeting, {})[self._rank] = start
            clock.run(number, start)
            return
        self._waiting[lane].append(_Pending(number, ready, meeting, partners))
        for storage in (*op.reads, *op.writes):
            self._lane_of[storage] = lane

    def _meeting(self, number: int) -> tuple[Meeting, frozenset[int]]:
        """Return what is exchanged, and the ranks that have to be there before it starts."""
        exchange, kind = self._clock.exchanges[number], kind_of(self._trace.ops[number].name)
        if exchange.peer is not None:
            pair = (self._rank, exchange.peer) if kind == "send" else (exchange.peer, self._rank)
            partners = frozenset({exchange.peer}) & self._known if kind == "receive" else frozenset[int]()
        else:
            pair = ("group", exchange.communicator)
            partners = self._known if self._collectives else frozenset[int]()
        self._counts[pair] += 1
        return (pair, self._counts[pair]), partners

    def _settle(self, arrivals: dict[Meeting, dict[int, int]], *, gives_up: bool = False) -> bool:
        """Run what is waited for and is there now, in the order of each lane; return whether anything was."""
        moved = False
        for lane, pending in self._waiting.items():
            while pending:
                first = pending[0]
                own = max(first.ready_ns, self._clock.free[lane])
                there = arrivals.setdefault(first.meeting, {})
                there.setdefault(self._rank, own)
                if not gives_up and not first.partners <= there.keys():
                    break
                gives_up, moved = False, True
                late = max([0, *(there[rank] - own for rank in first.partners if rank in there)])
                self.late[first.number] = late
                self._clock.run(first.number, own + late)
                pending.popleft()
                self._free_storages(first.number, pending)
        return moved

    def _free_storages(self, number: int, pending: deque[_Pending]) -> None:
        """Let go of what an exchange brought, but for what a later one on its lane still brings."""
        ops = self._trace.ops
        later = {s for each in pending for s in (*ops[each.number].reads, *ops[each.number].writes)}
        for storage in (*ops[number].reads, *ops[number].writes):
            if storage not in later:
                self._lane_of.pop(storage, None)


class _Pending(NamedTuple):
    """An exchange that has been called and has not begun."""

    number: int
    ready_ns: int
    meeting: Meeting
    partners: frozenset[int]


def _run(ranks: Mapping[int, _Rank]) -> None:
    """Run all ranks to their end."""
    arrivals: dict[Meeting, dict[int, int]] = {}
    while not all(each.is_done for each in ranks.values()):
        if not any(each.advance(arrivals) for each in ranks.values()):
            next(each for each in ranks.values() if not each.is_done).give_up(arrivals)
