"""Overlap: when collectives and other streams run in parallel with a step's compute, and where compute waits for them.

Computes: ops in the order of their calls, each on its stream. An op starts once its stream is free, what it reads is
written, and nobody uses any more what it writes. A collective starts once the stream that called it is there as well.
It runs on the lane of its links: those inside a computer, or the network. A message to one rank, or from it, has a
lane of its own. A collective that others are late for starts later by that (partners.py). Compute is the stream with
most of the step's work.
When right: as far as order and data decide. torch's process groups wait by events, which follow the same data.
Ignores: the host's own time, waits that no data shows, and that kernels of several streams slow each other down.
Cost: linear in the ops of a step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from elbowroom.trace import Exchange, Step, Trace

INSIDE, BETWEEN = "collective", "network"
"""Lanes of collectives inside a computer, and of those between computers."""


class LaneSpan(NamedTuple):
    """A collective on its lane, in nanoseconds from the start of the step.

    Attributes:
        op: its op.
        is_between: whether its ranks are on several computers.
        start_ns: when it begins.
        end_ns: when it ends.
    """

    op: int
    is_between: bool
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A step with its collectives.

    Attributes:
        op_ns: by op of the step, how far it brings compute on, waits included.
        waits_ns: by op, how long compute waits before it.
        spans: its collectives, in the order of their calls.
    """

    op_ns: tuple[int, ...]
    waits_ns: dict[int, int]
    spans: tuple[LaneSpan, ...]

    @property
    def exposed_ns(self) -> int:
        """Time that compute waits for collectives and other streams."""
        return sum(self.waits_ns.values())


class StreamClock:
    """When streams and lanes of links are free, and storages written and used, as the ops of a step go on.

    Args:
        trace: the trace.
        step: the step whose ops are timed.

    Attributes:
        exchanges: by op, its collective.
        main: the stream that is compute.
        free: by stream or lane, when it is free, in nanoseconds.
    """

    def __init__(self, trace: Trace, step: Step) -> None:
        self._trace = trace
        self._stream_of = dict(trace.op_streams)
        self._written: dict[int, int] = defaultdict(int)
        self._used: dict[int, int] = defaultdict(int)
        self.exchanges = {each.op: each for each in trace.exchanges}
        self.main = _main_stream(trace, step, self._stream_of, self.exchanges)
        self.free: dict[int | str, int] = defaultdict(int)

    def stream_of(self, number: int) -> int:
        """Return the stream that an op is on, or that called it."""
        return self._stream_of.get(number, 0)

    def lane_of(self, number: int) -> int | str:
        """Return the stream of an op, or the lane of a collective. A message has one for its peer and direction."""
        each = self.exchanges.get(number)
        if each is None:
            return self.stream_of(number)
        if each.peer is not None:
            return f"{self._trace.ops[number].name} {each.peer}"
        return BETWEEN if self.is_between(number) else INSIDE

    def is_between(self, number: int) -> bool:
        """Return whether the ranks of a collective are on several computers."""
        return self._trace.communicators[self.exchanges[number].communicator].nodes > 1

    def ready_ns(self, number: int) -> int:
        """Return when an op may start as far as its stream and its storages are concerned."""
        op, written, used = self._trace.ops[number], self._written, self._used
        whens = (*(written[s] for s in op.reads), *(max(written[s], used[s]) for s in op.writes))
        return max((*whens, self.free[self.stream_of(number)]))

    def run(self, number: int, start_ns: int) -> int:
        """Run an op from a time on; return when it ends."""
        op, lane = self._trace.ops[number], self.lane_of(number)
        ends = start_ns + op.duration_ns
        self.free[lane] = max(self.free[lane], ends)
        for storage in op.reads:
            self._used[storage] = max(self._used[storage], ends)
        for storage in op.writes:
            self._written[storage] = max(self._written[storage], ends)
        return ends


def overlap_of(trace: Trace, step: Step) -> Overlap | None:
    """Return when the collectives of a step run; None if it has none."""
    first, end = step
    if not any(first <= each.op < end for each in trace.exchanges):
        return None
    clock = StreamClock(trace, step)
    main, free = clock.main, clock.free
    op_ns, waits, spans = [0] * (end - first), dict[int, int](), list[LaneSpan]()
    for number in range(first, end):
        ready, exchange = clock.ready_ns(number), clock.exchanges.get(number)
        if exchange is not None:
            ready = max(ready, free[clock.lane_of(number)]) + exchange.late_ns
            ends = clock.run(number, ready)
            spans.append(LaneSpan(number, clock.is_between(number), ready, ends))
            continue
        before_ns = free[main]
        ends = clock.run(number, ready)
        if clock.stream_of(number) == main:
            op_ns[number - first] = ends - before_ns
            if ready > before_ns:
                waits[number] = ready - before_ns
    _wait_at_end(op_ns, waits, max(free.values(), default=0) - free[main], end - 1)
    return Overlap(op_ns=tuple(op_ns), waits_ns=waits, spans=tuple(spans))


def _wait_at_end(op_ns: list[int], waits: dict[int, int], late_ns: int, op: int) -> None:
    """Have the step end when its last stream does."""
    if late_ns > 0:
        op_ns[-1] += late_ns
        waits[op] = waits.get(op, 0) + late_ns


def _main_stream(trace: Trace, step: Step, stream_of: dict[int, int], exchanges: dict[int, Exchange]) -> int:
    """Return the stream with most of the step's work."""
    work: dict[int, int] = defaultdict(int)
    for number in range(*step):
        if number not in exchanges:
            work[stream_of.get(number, 0)] += trace.ops[number].duration_ns
    return max(work, key=lambda stream: (work[stream], -stream), default=0)
