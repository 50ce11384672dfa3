"""Overlap: when collectives and other streams run in parallel with a step's compute, and where compute waits for them.

Computes: ops in the order of their calls, each on its stream. An op starts once its stream is free, what it reads is
written, and nobody uses any more what it writes. A collective starts once the stream that called it is there as well.
It runs on the lane of its links: those inside a computer, or the network. Compute is the stream with most of the
step's work.
When right: as far as order and data decide. torch's process groups wait by events, which follow the same data.
Ignores: the host's own time, waits that no data shows, and that kernels of several streams slow each other down.
Cost: linear in the ops of a step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from elbowroom.trace import Step, Trace

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


def overlap_of(trace: Trace, step: Step) -> Overlap | None:
    """Return when the collectives of a step run; None if it has none."""
    first, end = step
    exchanges = {each.op: trace.communicators[each.communicator].nodes > 1 for each in trace.exchanges}
    if not any(first <= op < end for op in exchanges):
        return None
    stream_of = dict(trace.op_streams)
    main = _main_stream(trace, step, stream_of, exchanges)
    free: dict[int | str, int] = defaultdict(int)
    written: dict[int, int] = defaultdict(int)
    used: dict[int, int] = defaultdict(int)
    op_ns, waits, spans = [0] * (end - first), dict[int, int](), list[LaneSpan]()
    for number in range(first, end):
        op, stream = trace.ops[number], stream_of.get(number, 0)
        ready = max(
            (*(written[s] for s in op.reads), *(max(written[s], used[s]) for s in op.writes), free[stream]), default=0
        )
        lane: int | str = stream
        if number in exchanges:
            lane = BETWEEN if exchanges[number] else INSIDE
            ready = max(ready, free[lane])
        ends = ready + op.duration_ns
        if number in exchanges:
            spans.append(LaneSpan(number, exchanges[number], ready, ends))
        elif stream == main:
            op_ns[number - first] = ends - free[main]
            if ready > free[main]:
                waits[number] = ready - free[main]
        free[lane] = max(free[lane], ends)
        for storage in op.reads:
            used[storage] = max(used[storage], ends)
        for storage in op.writes:
            written[storage] = max(written[storage], ends)
    _wait_at_end(op_ns, waits, max(free.values(), default=0) - free[main], end - 1)
    return Overlap(op_ns=tuple(op_ns), waits_ns=waits, spans=tuple(spans))


def _wait_at_end(op_ns: list[int], waits: dict[int, int], late_ns: int, op: int) -> None:
    """Have the step end when its last stream does."""
    if late_ns > 0:
        op_ns[-1] += late_ns
        waits[op] = waits.get(op, 0) + late_ns


def _main_stream(trace: Trace, step: Step, stream_of: dict[int, int], exchanges: dict[int, bool]) -> int:
    """Return the stream with most of the step's work."""
    work: dict[int, int] = defaultdict(int)
    for number in range(*step):
        if number not in exchanges:
            work[stream_of.get(number, 0)] += trace.ops[number].duration_ns
    return max(work, key=lambda stream: (work[stream], -stream), default=0)
